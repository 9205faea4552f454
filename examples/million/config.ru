# frozen_string_literal: true

# A page that keeps every visitor connected: the index is a stream. Plain Rack, like `app.py`.

require "json"

BEGAN = Process.clock_gettime(Process::CLOCK_MONOTONIC)
BEAT = ENV.fetch("BEAT", "15")

PATHS = {
  "/" => lambda do
    fields = {
      "Content-Type" => "text/event-stream",
      "Cache-Control" => "no-store",
      "Grip-Hold" => "stream",
      "Grip-Channel" => "everybody",
      "Grip-Keep-Alive" => ":\\n\\n; format=cstring; timeout=#{BEAT}"
    }
    [200, fields, ["event: welcome\ndata: \n\n"]]
  end,
  "/ping" => -> { [200, { "Content-Type" => "text/plain" }, ["pong\n"]] },
  "/about" => lambda do
    seconds = (Process.clock_gettime(Process::CLOCK_MONOTONIC) - BEGAN).round(1)
    [200, { "Content-Type" => "application/json" }, [JSON.generate(pid: Process.pid, seconds: seconds)]]
  end
}.freeze

MISSING = -> { [404, { "Content-Type" => "text/plain" }, ["there is nothing here\n"]] }

run ->(env) { PATHS.fetch(env["PATH_INFO"], MISSING).call }
