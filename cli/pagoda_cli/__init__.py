"""`pagoda`: what people and scripts ask of Pagoda on a command line."""
