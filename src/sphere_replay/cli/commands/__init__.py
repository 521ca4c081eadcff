"""One module per `sphere` command, each with SUMMARY, add_arguments(parser) and run(arguments)."""
