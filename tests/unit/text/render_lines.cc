// Renders a chat template with many sets of variables: for the comparison with another
// implementation of the template language.
//
//   quartet-render-lines TEMPLATE < variables
//
// Each line of standard input is a JSON object of variables. For each a line is written: the text
// as a JSON string, or null where rendering fails.
#include <iostream>
#include <string>

#include "services/gateway/text/files.h"
#include "services/gateway/text/json.h"
#include "services/gateway/text/template/chat_template.h"

int main(int argc, char** argv) {
  using namespace quartet::text;
  if (argc != 2) {
    std::cerr << "quartet-render-lines TEMPLATE < variables\n";
    return 2;
  }
  const auto source = ReadSmallFile(argv[1], size_t{4} << 20);
  if (!source.ok()) {
    std::cerr << source.status().message() << "\n";
    return 2;
  }
  const auto chat_template = ChatTemplate::Parse(*source, argv[1]);
  if (!chat_template.ok()) {
    std::cerr << chat_template.status().message() << "\n";
    return 2;
  }
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto variables = ParseJson(line);
    if (!variables.ok()) {
      std::cerr << variables.status().message() << "\n";
      return 2;
    }
    const auto text = (*chat_template)->Render(*variables);
    std::string out = "null";
    if (text.ok()) {
      out.clear();
      AppendJsonString(*text, &out);
    }
    std::cout << out << "\n";
  }
  return 0;
}
