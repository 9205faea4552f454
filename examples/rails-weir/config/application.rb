# frozen_string_literal: true

# Rails without a database: controllers, views, sessions in a cookie.

require "rails"
require "action_controller/railtie"
require "action_view/railtie"

module Weir
  # The application and all of its settings; those that differ between machines come from the
  # environment.
  class Application < Rails::Application
    config.root = File.expand_path("..", __dir__)
    config.load_defaults [Rails.version.to_f, 7.0].min
    config.eager_load = !Rails.env.development?
    config.consider_all_requests_local = Rails.env.development?
    # Without SECRET_KEY_BASE the first process makes a secret, which all processes forked from it
    # share. A restart then ends the sessions.
    config.secret_key_base = ENV.fetch("SECRET_KEY_BASE") { SecureRandom.hex(64) }
    config.log_level = ENV.fetch("RAILS_LOG_LEVEL", "warn").to_sym
    config.logger = ActiveSupport::Logger.new($stdout)
    config.public_file_server.enabled = false
    # The server chooses the hosts.
    config.hosts.clear
  end
end
