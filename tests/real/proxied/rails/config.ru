# frozen_string_literal: true

require "action_controller/railtie"

# An application that requires https and has tokens in its forms.
class Shop < Rails::Application
  config.root = __dir__
  config.eager_load = false
  config.force_ssl = true
  config.action_controller.forgery_protection_origin_check = true
  config.hosts.clear
  config.logger = Logger.new(nil)
  config.secret_key_base = "only of this test" * 4
  config.session_store :cookie_store, key: "_shop", secure: true
  routes.append do
    get "/" => "orders#index", as: :orders
    post "/" => "orders#create"
  end
end

# Controllers defined before this have none of the routes' helpers.
Shop.initialize!

# Shows a form with its token, and how Rails sees the request.
class OrdersController < ActionController::Base
  protect_from_forgery with: :exception

  def index
    render json: { ssl: request.ssl?, ip: request.remote_ip, rack_ip: request.ip,
                   link: orders_url, token: form_authenticity_token }
  end

  def create
    redirect_to orders_url
  end
end

run Shop
