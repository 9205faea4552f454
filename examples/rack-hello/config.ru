# frozen_string_literal: true

# The smallest Rack application: one line of text, no framework.
#
# The benchmarks run it, since an application that costs next to nothing shows the cost of the
# server. The response must stay the same as that of examples/wsgi-hello: the two are compared.

BODY = "Hello, world!\n"

run(lambda do |_env|
  [200, { "content-type" => "text/plain", "content-length" => BODY.bytesize.to_s }, [BODY]]
end)
