# frozen_string_literal: true

# What a Rack environment holds besides the CGI names, which the server has encoded already. `boot` makes
# one table per process; `rack_app` merges it into each request's environment.
#
# Rack 2 demands keys that Rack 3 has dropped. `rack.hijack` is absent in both: the connection belongs to
# the server, and a stream body does what hijacking was used for.
module PenstockWorker
  # Tables by Rack version.
  module RackEnv
    module_function

    def base(rack_major, multithread:)
      both = { "rack.errors" => $stderr }
      return both if rack_major >= 3

      both.merge(
        "rack.version" => [1, 3].freeze,
        "rack.multithread" => multithread,
        "rack.multiprocess" => true,
        "rack.run_once" => false
      )
    end
  end
end
