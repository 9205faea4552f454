# frozen_string_literal: true

# A Rack application that streams request bodies; see `uploads.rs`.

# Read by the test.
module Notes
  module_function

  def note(text)
    File.write("seen.txt", "#{text}\n", mode: "a")
  end
end

def gate(name)
  sleep 0.003 until File.exist?(name)
end

def rest(body)
  total = 0
  while (piece = body.read(10_000))
    total += piece.bytesize
  end
  Notes.note "whole #{total}"
  total
rescue IOError
  Notes.note "cut"
  raise
end

# A body that reads the request while it is sent.
class Echo
  def initialize(body)
    @body = body
  end

  def each
    yield "go"
    loop { yield "<#{@body.readpartial(10_000)}>" }
  rescue EOFError
    yield "end"
  rescue IOError
    Notes.note "cut"
    raise
  end
end

run(lambda do |env|
  body = env["rack.input"]
  Notes.note "begun"
  answer =
    case env["PATH_INFO"]
    when "/echo" then Echo.new(body)
    when "/early" then ["early"]
    when "/lines" then [body.each.to_a.join("|")]
    when "/again"
      first = body.read
      body.rewind
      [(first == body.read).to_s]
    when %r{\A/behind/(.*)}
      gate(Regexp.last_match(1))
      [rest(body).to_s]
    when %r{\A/after/(.*)}
      name = Regexp.last_match(1)
      total = rest(body)
      gate(name)
      [total.to_s]
    else [rest(body).to_s]
    end
  [200, { "Content-Type" => "text/plain" }, answer]
end)
