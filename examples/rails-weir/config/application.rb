# frozen_string_literal: true

# Rails without a database: controllers, views, sessions in a cookie.

require "rails"
require "action_controller/railtie"
require "action_view/railtie"

module Weir
  # The application and all of its settings; what changes from place to place comes from the environment.
  class Application < Rails::Application
    config.root = File.expand_path("..", __dir__)
    config.load_defaults [Rails.version.to_f, 7.0].min
    config.eager_load = !Rails.env.development?
    config.consider_all_requests_local = Rails.env.development?
    # Without a secret of its own an installation signs its sessions with one that its first process makes,
    # which all processes forked from it share; a restart ends the sessions then.
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE") { SecureRandom.hex(64) }
    config.log_level = ENV.fetch("RAILS_LOG_LEVEL", "warn").to_sym
    config.logger = ActiveSupport::Logger.new($stdout)
    config.public_file_server.enabled = false
    # Which hosts it answers for is the server's matter.
    config.hosts.clear
  end
end
