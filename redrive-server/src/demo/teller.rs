//! Tells the story: lines with the time since it began, and a table at the end. Colours only on a terminal, and not if
//! `NO_COLOR` is set.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::story::End;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// Something begins.
    News,
    Good,
    Bad,
    /// It is not lost yet.
    Retry,
    Mail,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::News => "1",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Retry => "33",
            Self::Mail => "36",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    began: Instant,
    colours: bool,
}

/// How wide names are.
const NAME: usize = 13;

impl Teller {
    /// The story begins now.
    #[expect(clippy::disallowed_methods, reason = "a story has a beginning")]
    pub(super) fn begin() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
        Self { began: Instant::now(), colours: wanted && std::io::stdout().is_terminal() }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Without the time.
    pub(super) fn print(&self, text: &str) {
        _ = writeln!(std::io::stdout(), "{text}"); // if nobody listens any more, that is no reason to stop
    }

    /// Of somebody: a task, a service, a person.
    pub(super) fn say(&self, tone: Tone, who: &str, text: &str) {
        let line = format!("{:6.1} s  {who:NAME$} {text}", self.elapsed().as_secs_f64());
        self.print(&self.toned(tone, &line));
    }

    fn toned(&self, tone: Tone, text: &str) -> String {
        if self.colours && tone != Tone::Plain {
            format!("\x1b[{}m{text}\x1b[0m", tone.code())
        } else {
            text.to_owned()
        }
    }

    /// What was announced, and what came of it.
    pub(super) fn table<'p>(&self, rows: impl Iterator<Item = (&'p str, &'p End, &'p End)>) {
        let mut table = comfy_table::Table::new();
        table.set_header(["task", "announced", "ended", "as announced"]);
        for (name, announced, ended) in rows {
            let verdict = if ended.is_as(announced) { "yes" } else { "NO" };
            table.add_row([name.to_owned(), announced.to_string(), ended.to_string(), verdict.to_owned()]);
        }
        self.print(&format!("\n{table}"));
    }
}
