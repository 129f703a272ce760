#include "services/coordinator/core/repetition.h"

#include <vector>

namespace quartet::coordinator {

uint32_t RepeatedNgram(std::span<const int32_t> tokens) {
  // borders[i]: the longest proper beginning of the first i tokens that is also their end. What the
  // whole is longer than its longest border by is its shortest period.
  std::vector<uint32_t> borders(tokens.size() + 1);
  for (uint32_t i = 1; i < tokens.size(); ++i) {
    uint32_t border = borders[i];
    while (border > 0 && tokens[i] != tokens[border]) border = borders[border];
    borders[i + 1] = tokens[i] == tokens[border] ? border + 1 : 0;
  }
  return static_cast<uint32_t>(tokens.size()) - borders.back();
}

bool EndsInLoop(std::span<const int32_t> answer) {
  return answer.size() >= kRepetitionTokens &&
         RepeatedNgram(answer.last(kRepetitionTokens)) <= kRepetitionTokens / kRepetitionTimes;
}

}  // namespace quartet::coordinator
