# frozen_string_literal: true

# Finds the application in a Ruby file that is no rackup file (`app.rb`, `app.rb:Shop`). `boot`
# calls it.
#
# # Invariants
# - The file is loaded once.
# - Nothing is guessed: without a name there is one application in the file, or an error that tells
#   what to do.
module PenstockWorker
  # Loads Ruby files and picks their application.
  module Entry
    module_function

    # The application of `entry`, whose file is relative to the working directory.
    def load_app(entry)
      file, constant = entry.split(/(?<=\.rb):/, 2)
      path = File.expand_path(file)
      require path
      return named_app(file, constant) if constant

      framework_app(path) || sinatra_app(path) || only_app(file, candidates(path))
    end

    # The whole application of Rails or Hanami, of which the file is a part; that of Cuba, if the file
    # defines it and no class of its own.
    def framework_app(path)
      return ::Rails.application if path.end_with?("/config/environment.rb") && defined?(::Rails.application)
      return hanami_app if path.end_with?("/config/app.rb") && defined?(::Hanami.app)

      ::Cuba if defined?(::Cuba) && candidates(path).empty? && File.read(path).match?(/^\s*Cuba\.define\b/)
    end

    def hanami_app
      ::Hanami.boot
      ::Hanami.app
    end

    def named_app(file, constant)
      return Object.const_get(constant) if Object.const_defined?(constant)

      raise LoadError, "#{file} defines no #{constant}"
    end

    # What `require "sinatra"` makes of the file that requires it, when that defines routes.
    def sinatra_app(path)
      return unless defined?(::Sinatra::Application)

      app = ::Sinatra::Application
      own = app.app_file && File.expand_path(app.app_file) == path
      app if own && app.routes.any? { |_method, routes| !routes.empty? }
    end

    # The constants of the file that can be called, by name: classes of Sinatra, Roda and others,
    # and procs.
    def candidates(path)
      apps = constants_of(Object, path).select { |_name, app| app.respond_to?(:call) }
      # A superclass of others is no application itself.
      parents = apps.values.grep(Class).map(&:superclass)
      apps.reject { |_name, app| parents.include?(app) }
    end

    # What the file defines, also in its modules: `Shop::Web` of `module Shop; class Web`.
    def constants_of(parent, path, prefix = "")
      parent.constants(false).each_with_object({}) do |name, found|
        next unless source_file_of(parent, name) == path

        value = parent.const_get(name)
        found["#{prefix}#{name}"] = value
        found.merge!(constants_of(value, path, "#{prefix}#{name}::")) if value.instance_of?(Module)
      end
    end

    def source_file_of(parent, name)
      file, = parent.const_source_location(name)
      file && File.expand_path(file)
    end

    def only_app(file, apps)
      return apps.values.first if apps.size == 1

      # As `rackup app.rb` finds it.
      usual = File.basename(file, ".rb").split("_").map(&:capitalize).join
      return apps[usual] if apps.key?(usual)

      raise LoadError, apps.empty? ? no_app_message(file) : several_apps_message(file, apps.keys.sort)
    end

    def no_app_message(file)
      "#{file} has no Rack application: name it, as in #{file}:Shop, or write a config.ru"
    end

    def several_apps_message(file, names)
      "#{file} has several applications (#{names.join(", ")}): say which, as in #{file}:#{names.first}"
    end
  end
end
