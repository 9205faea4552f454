# The row that each one-view application reads.

require "sqlite3"

module OneView
  DB = SQLite3::Database.new(":memory:")
  DB.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT)")
  100.times { |n| DB.execute("INSERT INTO rows VALUES (?, ?)", [n, "row #{n}"]) }

  def self.name = DB.get_first_value("SELECT name FROM rows WHERE id = 7")
end
