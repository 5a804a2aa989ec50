"""One pure function a question: Profile in, frozen result out. No printing, plotting, files or models."""
