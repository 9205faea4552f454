# frozen_string_literal: true

Rails.application.routes.draw do
  root "flows#index"
  resources :flows, only: %i[index create]
  get "up", to: "flows#up"
end
