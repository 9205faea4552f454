# frozen_string_literal: true

require "penstock/executable"

module Penstock
  # Becomes the binary for `rackup -s penstock` and `rails server -u penstock`.
  #
  # Penstock loads config.ru in processes of its own, so that the application that Rack hands over is
  # not used. The binary takes this process over: signals reach it, and a pid file names it.
  module Handler
    # What Rack calls the environment in which errors are shown.
    DEVELOPMENT = "development"

    module_function

    # Serves; does not return.
    def run(_app, **options)
      exec(environment(options), Penstock.executable, "serve", *arguments_for(options))
    end

    # What `rackup --help` says about this handler's options (`-O NAME=VALUE`).
    def valid_options
      {
        "processes=N" => "Number of worker processes",
        "Threads=N" => "Number of threads in each worker process",
        "Admin=ADDRESS" => "Address of the status page, or off (also PENSTOCK_ADMIN)",
        "Config=FILE" => "Configuration file, in place of --listen and config.ru"
      }
    end

    # The arguments of `penstock serve` for Rack's options.
    def arguments_for(options)
      arguments = options[:Config] ? ["-c", options[:Config].to_s] : served_file(options)
      arguments.push("--processes", options[:processes].to_s) if options[:processes]
      arguments.push("--threads", options[:Threads].to_s) if options[:Threads]
      # `rails server` has no options for a handler.
      admin = options[:Admin] || ENV["PENSTOCK_ADMIN"]
      arguments.push("--admin", admin.to_s) if admin
      arguments.push("--dev") if rack_environment(options) == DEVELOPMENT
      arguments
    end

    def served_file(options)
      host = options[:Host] || "localhost"
      host = "127.0.0.1" if host == "localhost"
      host = "[#{host}]" if host.include?(":")
      file = File.expand_path(options[:config] || "config.ru")
      [file, "--listen", "#{host}:#{options[:Port] || 9292}"]
    end

    def environment(options)
      name = rack_environment(options)
      name ? { "RACK_ENV" => name } : {}
    end

    def rack_environment(options)
      options[:environment]&.to_s || ENV["RACK_ENV"]
    end
  end
end
