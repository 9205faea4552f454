# frozen_string_literal: true

# Waits `?ms=N` in the kernel, like a database query.

run(lambda do |env|
  sleep(env["QUERY_STRING"].delete_prefix("ms=").to_f / 1000)
  [200, { "content-type" => "text/plain" }, ["waited\n"]]
end)
