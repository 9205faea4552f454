ENV["RAILS_ENV"] = "production"

require "action_controller/railtie"
require_relative "one_view"

class Site < Rails::Application
  config.root = __dir__
  config.eager_load = true
  config.consider_all_requests_local = false
  config.secret_key_base = "only for measurements"
  config.logger = Logger.new(IO::NULL)
  config.hosts.clear
  routes.append { root to: "pages#show" }
end

class PagesController < ActionController::Base
  def show
    render inline: "<p><%= OneView.name %></p>"
  end
end

Site.initialize!
run Site
