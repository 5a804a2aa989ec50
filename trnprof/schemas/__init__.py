"""JSON schemas of each command's `result`, and of the envelope around it: data of trnprof.result_schema."""
