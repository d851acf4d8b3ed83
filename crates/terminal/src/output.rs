//! Output of commands: tables and sentences for people, JSON for programs, bytes as they are.

use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::io::{self, BufWriter, Stdout, Write};

/// Standard output in the requested form.
pub struct Printer {
    json: bool,
    out: BufWriter<Stdout>,
}

impl Printer {
    /// Standard output as JSON for programs, or as text for people.
    pub fn new(json: bool) -> Self {
        Self {
            json,
            out: BufWriter::new(io::stdout()),
        }
    }

    /// Whether the output is for a program.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints an answer: an object for programs, or a sentence.
    pub fn answer(&mut self, object: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            self.object(object)
        } else {
            self.line(&text())
        }
    }

    /// Prints a list: an object per row for programs, or a table. Prints `empty` instead of a table without rows.
    /// `columns` has the headings, separated by `, `; `>` before a heading aligns its column to the right, for numbers.
    pub fn list<R: Serialize>(
        &mut self,
        rows: &[R],
        columns: &str,
        empty: &str,
        cells: impl Fn(&R) -> Vec<String>,
    ) -> anyhow::Result<()> {
        if self.json {
            return rows.iter().try_for_each(|row| self.object(row));
        }
        if rows.is_empty() {
            return self.line(empty);
        }
        let columns = columns.split(", ").map(|heading| match heading.strip_prefix('>') {
            Some(heading) => (heading, CellAlignment::Right),
            None => (heading, CellAlignment::Left),
        });
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(columns.clone().map(|(heading, _)| heading));
        for row in rows {
            table.add_row(cells(row).iter().map(|cell| printable(cell)));
        }
        for (index, (_, alignment)) in columns.enumerate() {
            if let Some(column) = table.column_mut(index) {
                column.set_padding((0, 2)).set_cell_alignment(alignment);
            }
        }
        for line in table.lines() {
            self.line(line.trim_end())?;
        }
        Ok(())
    }

    /// Prints one JSON object on a line of its own.
    pub fn object(&mut self, object: &impl Serialize) -> anyhow::Result<()> {
        let json = serde_json::to_string(object).context("cannot encode the answer")?;
        self.line(&json)
    }

    /// Prints a line of text.
    pub fn line(&mut self, text: &str) -> anyhow::Result<()> {
        writeln!(self.out, "{text}").context("cannot write to stdout")
    }

    /// Prints bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(bytes).context("cannot write to stdout")
    }

    /// Writes everything that was printed so far.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.out.flush().context("cannot write to stdout")
    }
}

/// Text from other parties, without control characters, which could move the cursor or colour the terminal.
pub fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
        assert_eq!(printable("grüße"), "grüße");
    }
}
