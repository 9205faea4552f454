# frozen_string_literal: true

# Forms carry a token against cross-site requests.
class ApplicationController < ActionController::Base
  protect_from_forgery with: :exception
end
