#include <iostream>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "services/cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("Quartet serves GLM-5.3-Flash from EXL3 checkpoints on one machine.", "quartet");
  app.require_subcommand(1);
  quartet::cli::Command chosen;
  quartet::cli::AddServeCommand(app, &chosen);
  quartet::cli::AddChatCommand(app, &chosen);
  quartet::cli::AddBenchCommand(app, &chosen);
  quartet::cli::AddDoctorCommand(app, &chosen);
  quartet::cli::AddPlanCommand(app, &chosen);
  quartet::cli::AddSimCommand(app, &chosen);
  quartet::cli::AddRenderCommand(app, &chosen);
  quartet::cli::AddParseCommand(app, &chosen);
  quartet::cli::AddKeyCommand(app, &chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // CLI11's own numbers are above 100; a wrong command line is 2 here, as in most programs.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return chosen();
}
