# frozen_string_literal: true

# The constant part of a Rack environment: Rack's own keys, and the CGI names that the server leaves
# out when they have their common value. `boot` makes one table per process; `wire` puts each
# request's variables into a copy of it.
#
# Rack 2 demands keys that Rack 3 has dropped. `rack.hijack` is each request's own, and not in the
# table.
module PenstockWorker
  # Tables by Rack version.
  module RackEnv
    # Left out by the server with these values (`PROTOCOL.md`).
    DEFAULT_VARIABLES = {
      "rack.url_scheme" => "http",
      "SCRIPT_NAME" => "",
      "QUERY_STRING" => "",
      "REMOTE_ADDR" => "",
      "SERVER_PROTOCOL" => "HTTP/1.1",
      "SERVER_SOFTWARE" => "penstock"
    }.freeze

    # Entries that make a table grow to hold 32, as most requests need.
    CAPACITY_ENTRIES = (1..17).to_h { |number| [number, nil] }.freeze
    private_constant :CAPACITY_ENTRIES

    module_function

    # `slot` if it is always the same, as in a thread. The table has room for the variables that
    # each request adds to its copy: without that every copy is rebuilt when it has got 16 entries
    # (2 % of a small request).
    def base(rack_major, multithread:, slot: nil)
      CAPACITY_ENTRIES.dup.clear.update(table(rack_major, multithread, slot))
    end

    def table(rack_major, multithread, slot)
      both = {
        "rack.errors" => $stderr,
        **DEFAULT_VARIABLES,
        "rack.hijack?" => true,
        "penstock.prevent_fork" => PenstockWorker.method(:prevent_fork),
        "penstock.mark_as_io_bound" => slot ? slot.method(:mark_as_io_bound) : UNSUPPORTED_IN_REACTOR,
        "penstock.extend_timeout" => slot ? slot.method(:extend_timeout) : UNSUPPORTED_IN_REACTOR
      }
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
