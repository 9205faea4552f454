//! A table: titled columns and rows of text. Aligned here for a terminal, and marked up by `html`.

/// Rows under titled columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) columns: Vec<Column>,
    /// One cell per column.
    pub(crate) rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: String,
    pub(crate) kind: ColumnKind,
}

/// The content of a column, which decides the alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// Aligned left.
    Text,
    /// Aligned right.
    Number,
}

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[(&str, ColumnKind)]) -> Self {
        let column = |&(title, kind): &(&str, ColumnKind)| Column {
            title: title.to_owned(),
            kind,
        };
        Self {
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Removes columns without a value in any row (empty or a dash).
    pub(crate) fn without_empty_columns(mut self) -> Self {
        for index in (0..self.columns.len()).rev() {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            if cells.clone().all(|cell| cell.is_empty() || cell == "-") {
                self.columns.remove(index);
                for row in &mut self.rows {
                    if index < row.len() {
                        row.remove(index);
                    }
                }
            }
        }
        self
    }

    /// The table for a terminal: indented by two, columns two apart, no trailing blanks.
    pub(crate) fn text(&self) -> String {
        let width = |index: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let widths = cells.map(|cell| cell.chars().count());
            widths
                .max()
                .unwrap_or(0)
                .max(self.columns[index].title.chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title.clone())
            .collect();
        let mut text = String::new();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), column) in row.iter().zip(&widths).zip(&self.columns) {
                line += &match column.kind {
                    ColumnKind::Text => format!("  {cell:<width$}"),
                    ColumnKind::Number => format!("  {cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_content() {
        let columns = [
            ("name", ColumnKind::Text),
            ("n", ColumnKind::Number),
            ("none", ColumnKind::Number),
        ];
        let mut table = Table::new(&columns);
        table.rows.push(vec!["über".into(), "1".into(), "-".into()]);
        table
            .rows
            .push(vec!["a long one".into(), "1,000".into(), String::new()]);
        let expected = "  name            n\n  über            1\n  a long one  1,000\n";
        assert_eq!(table.without_empty_columns().text(), expected);
    }
}
