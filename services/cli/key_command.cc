#include <iostream>
#include <memory>
#include <string>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/statusor.h"
#include "services/cli/commands.h"
#include "services/gateway/access/api_keys.h"

namespace quartet::cli {
namespace {

// The key comes on standard input and not as a flag, which everybody on the machine could read.
int RunKey(const std::string& name) {
  std::string key;
  std::getline(std::cin, key);
  if (!key.empty() && key.back() == '\r') key.pop_back();
  const absl::StatusOr<std::string> line = gateway::MakeApiKeyLine(name, key);
  if (!line.ok()) {
    std::cerr << "quartet: " << line.status().message() << "\n";
    return 1;
  }
  std::cout << *line << "\n";
  return 0;
}

}  // namespace

void AddKeyCommand(CLI::App& app, Command* chosen) {
  auto name = std::make_shared<std::string>();
  CLI::App* key = app.add_subcommand("key",
                                     "Make a line for the file of --api-key-file from an API key "
                                     "on standard input; the line holds "
                                     "no more than a salted hash of it");
  key->add_option("name", *name, "Whose key it is: for the access log")->required();
  key->callback([name, chosen] { *chosen = [name] { return RunKey(*name); }; });
}

}  // namespace quartet::cli
