# frozen_string_literal: true

# Measures the worker's own cost: CPU time of one process per request, alone and in batches. Run by
# hand: `ruby test/measure.rb [BATCH] [REQUESTS]`. Prints microseconds of user plus system time of
# the worker for each request of a hello application, socket calls included.

require_relative "harness"

HELLO = <<~'RUBY'
  run lambda { |_env|
    body = "Hello, world!\n"
    [200, { "content-type" => "text/plain", "content-length" => body.bytesize.to_s }, [body]]
  }
RUBY

def cpu_seconds(pid)
  Dir["/proc/#{pid}/task/*/schedstat"].sum { |path| File.read(path).split[0].to_i } / 1e9
end

def measure(batch, total)
  worker = Harness::Worker.new(HELLO).ready
  socket = worker.slots[0].socket
  socket.write(Harness.request)
  size = socket.readpartial(1 << 16).bytesize
  frames = Harness.request * batch
  buffer = String.new
  before = cpu_seconds(worker.pid)
  (total / batch).times do
    socket.write(frames)
    left = size * batch
    left -= socket.readpartial(left, buffer).bytesize while left.positive?
  end
  (cpu_seconds(worker.pid) - before) / (total / batch * batch) * 1e6
ensure
  worker&.stop
end

batches = ARGV[0] ? [Integer(ARGV[0])] : [1, 8]
total = Integer(ARGV[1] || 40_000)
batches.each do |batch|
  printf("batch %d: %.2f us of worker CPU a request\n", batch, measure(batch, total))
end
