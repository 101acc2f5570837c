"""What puts kvferry into inference engines: one package for each."""
