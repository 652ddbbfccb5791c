"""The options of each command, one function a command, in modules named as those that run them."""
