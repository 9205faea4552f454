-- What wrk found, as one line of JSON after its own report: exact where the report is rounded.
-- `measure.py` gives this file to wrk and reads the last line. Nothing but `done` may be defined
-- here: any other callback would make wrk build or inspect every request in Lua.

function done(summary, latency, requests)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format('\n{"requests": %d, "duration_us": %d, "errors": %d, "p99_us": %d}\n',
    summary.requests, summary.duration, errors, latency:percentile(99)))
end
