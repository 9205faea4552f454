# frozen_string_literal: true

# The smallest Rack application: one line of text, no framework.
#
# What is left when the application costs next to nothing is the server, so the benchmarks run it.
# The answer must stay the same as that of examples/wsgi-hello: the two are compared.

BODY = "Hello, world!\n"

run(lambda do |_env|
  [200, { "content-type" => "text/plain", "content-length" => BODY.bytesize.to_s }, [BODY]]
end)
