// What a client makes of an answer's pieces: for the tests of the output's parser.
#ifndef QUARTET_TESTS_UNIT_TEXT_MESSAGE_H_
#define QUARTET_TESTS_UNIT_TEXT_MESSAGE_H_

#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "services/gateway/text/text_piece.h"
#include "services/gateway/text/tool_schema.h"

namespace quartet::text {

struct Call {
  std::string name;
  std::string arguments;
  bool complete = true;

  bool operator==(const Call&) const = default;
};

struct Message {
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;

  bool operator==(const Message&) const = default;
};

void PrintTo(const Message& message, std::ostream* out);

// The test fails if the pieces are not as they must be: empty, of a call that has not begun or has
// ended, or a complete call's arguments no JSON object.
Message ToMessage(const std::vector<TextPiece>& pieces);

struct Start {
  bool opens_think = true;
  std::shared_ptr<const Tools> tools;
  OutputEnd end = OutputEnd::kStop;
};

// The pieces of a text that comes in these chunks.
std::vector<TextPiece> Split(const std::vector<std::string>& chunks, const Start& start);

// The message of `text`. The test fails if it, or the order of its pieces, depends on how the text
// is cut: whole, into single bytes, and at random in 200 ways.
Message MessageOf(std::string_view text, const Start& start = {});

// Tools f and g whose parameters are the JSON schemas.
std::shared_ptr<const Tools> MakeTools(std::string_view parameters_of_f,
                                       std::string_view parameters_of_g = "{}");

}  // namespace quartet::text

#endif  // QUARTET_TESTS_UNIT_TEXT_MESSAGE_H_
