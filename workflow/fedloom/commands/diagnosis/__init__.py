"""What `fedloom doctor` looks at; every look yields findings."""
