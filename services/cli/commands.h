#ifndef QUARTET_SERVICES_CLI_COMMANDS_H_
#define QUARTET_SERVICES_CLI_COMMANDS_H_

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace quartet::cli {

// Runs a subcommand after the flags were read; returns the program's exit code.
using Command = std::function<int()>;

// Each adds its subcommand with its flags to `app`. When the user picked it, `*chosen` is set to
// what runs it.
void AddServeCommand(CLI::App& app, Command* chosen);
void AddChatCommand(CLI::App& app, Command* chosen);
void AddBenchCommand(CLI::App& app, Command* chosen);
void AddDoctorCommand(CLI::App& app, Command* chosen);
void AddPlanCommand(CLI::App& app, Command* chosen);
void AddSimCommand(CLI::App& app, Command* chosen);
void AddRenderCommand(CLI::App& app, Command* chosen);
void AddParseCommand(CLI::App& app, Command* chosen);
void AddKeyCommand(CLI::App& app, Command* chosen);

}  // namespace quartet::cli

#endif  // QUARTET_SERVICES_CLI_COMMANDS_H_
