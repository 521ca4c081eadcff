"""One module per `sphere` command, each with add_arguments(parser) and run(arguments)."""
