//! A table: titled columns and rows of text. Aligned here for a terminal, marked up by the page,
//! and written as it is by `csv`.

use serde::Serialize;

/// Rows under titled columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    /// One cell per column.
    pub(crate) rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// Numbers are aligned right, text left.
    pub(crate) is_number: bool,
}

/// A table that is declared column by column, with a row for each item.
pub(crate) struct TableBuilder<R> {
    items: Vec<R>,
    table: Table,
}

impl Table {
    pub(crate) fn of<R>(items: impl IntoIterator<Item = R>) -> TableBuilder<R> {
        let items: Vec<R> = items.into_iter().collect();
        let rows = items.iter().map(|_| Vec::new()).collect();
        let columns = Vec::new();
        TableBuilder {
            items,
            table: Self { columns, rows },
        }
    }

    /// Removes columns without a value in any row (empty or a dash).
    fn without_empty_columns(mut self) -> Self {
        for index in (0..self.columns.len()).rev() {
            let mut cells = self.rows.iter().map(|row| &*row[index]);
            if cells.all(|cell| cell.is_empty() || cell == "-") {
                self.columns.remove(index);
                for row in &mut self.rows {
                    row.remove(index);
                }
            }
        }
        self
    }

    /// The table for a terminal: indented by two, columns two apart, no trailing blanks.
    pub(crate) fn text(&self) -> String {
        let titles: Vec<String> = self.columns.iter().map(|one| one.title.clone()).collect();
        let rows = || std::iter::once(&titles).chain(&self.rows);
        let width = |index: usize| rows().map(|row| row[index].chars().count()).max();
        let widths: Vec<_> = (0..titles.len()).filter_map(width).collect();
        let mut text = String::new();
        for row in rows() {
            for ((cell, width), column) in row.iter().zip(&widths).zip(&self.columns) {
                text += &match column.is_number {
                    true => format!("  {cell:>width$}"),
                    false => format!("  {cell:<width$}"),
                };
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}

impl<R> TableBuilder<R> {
    pub(crate) fn number_column<D: ToString>(self, title: &str, cell: impl Fn(&R) -> D) -> Self {
        self.column(title, true, cell)
    }

    pub(crate) fn text_column<D: ToString>(self, title: &str, cell: impl Fn(&R) -> D) -> Self {
        self.column(title, false, cell)
    }

    fn column<D: ToString>(mut self, title: &str, is_number: bool, cell: impl Fn(&R) -> D) -> Self {
        let title = title.to_owned();
        self.table.columns.push(Column { title, is_number });
        for (row, item) in self.table.rows.iter_mut().zip(&self.items) {
            row.push(cell(item).to_string());
        }
        self
    }

    /// The table with all columns.
    pub(crate) fn build_all_columns(self) -> Table {
        self.table
    }

    /// The table without the columns that have no value in any row.
    pub(crate) fn build_nonempty_columns(self) -> Table {
        self.table.without_empty_columns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let table = Table::of([("über", "1", "-"), ("a long one", "1,000", "")])
            .text_column("name", |row| row.0)
            .number_column("n", |row| row.1)
            .number_column("none", |row| row.2);
        let expected = "  name            n\n  über            1\n  a long one  1,000\n";
        assert_eq!(table.build_nonempty_columns().text(), expected);
    }
}
