// Numbers and strings as bytes, for what crosses process boundaries.
#ifndef QUARTET_SERVICES_GRAMMAR_BYTE_CODEC_H_
#define QUARTET_SERVICES_GRAMMAR_BYTE_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace quartet::grammar {

// Numbers take 7 bits a byte, the lowest first.
class ByteWriter {
 public:
  void Byte(uint8_t byte) { bytes_.push_back(static_cast<char>(byte)); }
  void Number(uint64_t number) {
    for (; number >= 128; number >>= 7) Byte(static_cast<uint8_t>(number) | 128);
    Byte(static_cast<uint8_t>(number));
  }
  void String(std::string_view text) {
    Number(text.size());
    bytes_.append(text);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After anything that is not there or too large, ok() is false and all that is read is zero.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty(); }
  uint8_t Byte() {
    if (!ok_ || bytes_.empty()) return Fail();
    const auto byte = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return byte;
  }
  // At most `max`, and in no more bytes than needed.
  uint64_t Number(uint64_t max) {
    uint64_t number = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      const uint8_t byte = Byte();
      number |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) {
        if (!ok_ || number > max || (byte == 0 && shift > 0)) return Fail();
        return number;
      }
    }
    return Fail();
  }
  std::string_view String() {
    const size_t size = Number(bytes_.size());
    if (!ok_ || size > bytes_.size()) {
      Fail();
      return {};
    }
    const std::string_view text = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return text;
  }

 private:
  uint8_t Fail() {
    ok_ = false;
    bytes_ = {};
    return 0;
  }

  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace quartet::grammar

#endif  // QUARTET_SERVICES_GRAMMAR_BYTE_CODEC_H_
