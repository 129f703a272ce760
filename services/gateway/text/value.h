// The value that JSON bodies are parsed into and that templates compute with.
//
// Values are immutable and share their contents, so that copying one is cheap; any number of
// threads may read one. Objects keep the order of their keys. Numbers that come from JSON keep
// their spelling: 1.0 stays "1.0", and integers beyond 64 bits are not rounded when they are
// printed.
#ifndef QUARTET_SERVICES_GATEWAY_TEXT_VALUE_H_
#define QUARTET_SERVICES_GATEWAY_TEXT_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quartet::text {

// Something only a running template knows (a macro, a namespace, a bound method). Never part of a
// list or an object.
class OpaqueValue {
 public:
  virtual ~OpaqueValue() = default;
  // How error messages call it, for example "namespace".
  virtual std::string_view type_name() const = 0;
};

class Value {
 public:
  enum class Type { kUndefined, kNone, kBool, kInteger, kFloat, kString, kList, kObject, kOpaque };
  using List = std::vector<Value>;
  using Entry = std::pair<std::string, Value>;
  using Entries = std::vector<Entry>;

  // The undefined value: what a template gets for a name that nobody set. Never produced by JSON.
  Value() = default;

  static Value None();
  static Value Bool(bool value);
  static Value Integer(int64_t value);
  static Value Float(double value);
  // A number with the spelling `token`, which must be a JSON number.
  static Value NumberToken(std::string_view token);
  static Value String(std::string value);
  static Value MakeList(List items);
  // Of keys that repeat, the last value wins and the first position is kept.
  static Value MakeObject(Entries entries);
  static Value Opaque(std::shared_ptr<OpaqueValue> value);

  Type type() const { return static_cast<Type>(data_.index()); }
  bool is_undefined() const { return type() == Type::kUndefined; }
  bool is_none() const { return type() == Type::kNone; }
  // JSON null or nothing at all.
  bool is_absent() const { return is_undefined() || is_none(); }
  bool is_bool() const { return type() == Type::kBool; }
  bool is_integer() const { return type() == Type::kInteger; }
  bool is_number() const { return type() == Type::kInteger || type() == Type::kFloat; }
  bool is_string() const { return type() == Type::kString; }
  bool is_list() const { return type() == Type::kList; }
  bool is_object() const { return type() == Type::kObject; }
  bool is_opaque() const { return type() == Type::kOpaque; }

  // The accessors below must be called on a value of their type only.
  bool boolean() const;
  int64_t integer() const;
  // Of an integer or a float. Infinite if a JSON number does not fit a double.
  double number() const;
  // Of a temporary the three below return a copy, so that a loop over object.Get("key").list() is
  // safe.
  const std::string& string() const&;
  std::string string() const&& { return static_cast<const Value&>(*this).string(); }
  const List& list() const&;
  List list() const&& { return static_cast<const Value&>(*this).list(); }
  const Entries& entries() const&;
  Entries entries() const&& { return static_cast<const Value&>(*this).entries(); }
  const std::shared_ptr<OpaqueValue>& opaque() const;

  // The value of `key` of an object, or nullptr. Also nullptr if this is not an object. O(log n)
  // for large objects.
  const Value* Find(std::string_view key) const;
  // The same, as a value: undefined if there is none.
  Value Get(std::string_view key) const;

  // The number as JSON spells it: the original spelling if it came from JSON.
  std::string NumberText() const;
  // Whether the number came from JSON, so that NumberText is the sender's spelling.
  bool has_spelling() const;

  // Levels of nesting: 0 for scalars, 1 for a list of scalars.
  int depth() const;
  // About the bytes that it takes as text. A shared part counts each time that it occurs.
  size_t weight() const;

  // Python's idea of truth: empty strings, lists and objects, zero, none and undefined are false.
  bool Truthy() const;
  // Python's ==: numbers compare by value, and booleans count as 0 and 1.
  bool Equals(const Value& other) const;

  // For error messages: "string", "integer", "object", "null", ...
  std::string_view TypeName() const;

 private:
  struct UndefinedTag {};
  struct NoneTag {};
  struct IntegerRep {
    int64_t value;
    std::shared_ptr<const std::string> spelling;
  };
  struct FloatRep {
    double value;
    std::shared_ptr<const std::string> spelling;
  };
  struct ListRep;
  struct ObjectRep;
  using Data = std::variant<UndefinedTag, NoneTag, bool, IntegerRep, FloatRep,
                            std::shared_ptr<const std::string>, std::shared_ptr<const ListRep>,
                            std::shared_ptr<const ObjectRep>, std::shared_ptr<OpaqueValue>>;
  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

}  // namespace quartet::text

#endif  // QUARTET_SERVICES_GATEWAY_TEXT_VALUE_H_
