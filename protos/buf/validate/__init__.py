"""The options of protovalidate, which state the rules of fields: another project's `.proto` and its stubs."""
