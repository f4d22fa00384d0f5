//! The one error of the library: few variants, each saying what was being done to what.

use std::fmt;

/// What can go wrong in redrive itself. A handler's own errors are not here: they are
/// [`Failure`](crate::Failure)s, recorded with the task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Input that cannot be accepted. Nothing was changed. All problems are listed.
    #[error("{0}")]
    Invalid(Problems),

    /// There is no such task, dead letter, node or lock (any more).
    #[error("no {what} {id}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Which one.
        id: String,
    },

    /// It exists, but not in a state in which this can be done to it.
    #[error("cannot {doing} {id}: {why}")]
    Conflict {
        /// What was asked for.
        doing: &'static str,
        /// To which one.
        id: String,
        /// What stands against it, and what to do instead.
        why: String,
    },

    /// It cannot be done here and now: this engine has stopped, or is cut off from its database. Try again, or elsewhere.
    #[error("cannot {doing} {id}: {why}")]
    Unavailable {
        /// What was asked for.
        doing: &'static str,
        /// To which one.
        id: String,
        /// What stands against it, and what is known of what was done.
        why: String,
    },

    /// The database answered with an error, or could not be reached.
    #[error("{doing}: {source}")]
    Database {
        /// What was being done, and to which id.
        doing: String,
        /// What the database said, without secrets.
        source: DatabaseError,
    },

    /// The schema in the database is not one that this version can use.
    #[error("{0}")]
    Schema(String),
}

/// Shorthand for results of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Invalid`] with one problem.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        let mut problems = Problems::default();
        problems.add(field, problem);
        Self::Invalid(problems)
    }

    /// The same for another who was told of it too: without its source, which cannot be copied.
    pub(crate) fn echo(&self) -> Self {
        match self {
            Self::Invalid(problems) => Self::Invalid(problems.clone()),
            Self::NotFound { what, id } => Self::NotFound { what, id: id.clone() },
            Self::Conflict { doing, id, why } => Self::Conflict { doing, id: id.clone(), why: why.clone() },
            Self::Unavailable { doing, id, why } => Self::Unavailable { doing, id: id.clone(), why: why.clone() },
            Self::Schema(why) => Self::Schema(why.clone()),
            Self::Database { doing, source } => {
                let source = DatabaseError { fault: source.fault, message: source.message.clone(), source: None };
                Self::Database { doing: doing.clone(), source }
            }
        }
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        match self {
            Self::Database { source, .. } => Some(source.fault),
            _ => None,
        }
    }

    /// The same for who would else look for the one row that is held.
    pub(crate) fn into_unavailable(mut self) -> Self {
        if let Self::Database { source, .. } = &mut self {
            source.fault = Fault::Unavailable;
        }
        self
    }

    /// Whether the same call may succeed later without anything being changed: a lost connection,
    /// a deadlock, a failover. What is [unavailable](Self::Unavailable) because its engine has stopped succeeds on another.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database { source, .. } => source.is_transient(),
            Self::Unavailable { .. } => true,
            _ => false,
        }
    }
}

/// What a database said, reduced to what can be acted on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DatabaseError {
    pub(crate) fault: Fault,
    pub(crate) message: String,
    #[source]
    pub(crate) source: Option<Box<sqlx::Error>>,
}

impl DatabaseError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self.fault, Fault::Disconnected | Fault::Conflict | Fault::Busy | Fault::Unavailable)
    }
}

/// The kinds of database errors that are treated differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is gone; what was under way may or may not have been committed.
    Disconnected,
    /// Deadlock or serialization failure: rolled back, may be repeated at once.
    Conflict,
    /// A lock was not to be had in time: rolled back.
    Busy,
    /// Starting, stopping, read-only after a failover, out of connections: try again, perhaps elsewhere.
    Unavailable,
    /// A unique value is taken.
    Unique,
    /// A table is not there.
    NoTable,
    /// Anything else: repeating it will not help.
    Other,
}

/// A list of what is wrong with an input: each with the field that it is about. Of an input that is wrong all over, the first hundred
/// are kept and the others counted: what is said of it must not be larger than itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<(String, String)>,
    more: usize,
}

/// How many are kept.
const MOST_PROBLEMS: usize = 100;

impl Problems {
    /// Notes a problem of a field.
    pub fn add(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        match self.kept.len() < MOST_PROBLEMS {
            true => self.kept.push((field.into(), problem.into())),
            false => self.more += 1,
        }
    }

    /// Notes a problem of a field unless the condition holds.
    pub fn require(&mut self, holds: bool, field: &str, problem: impl FnOnce() -> String) {
        if !holds {
            self.add(field, problem());
        }
    }

    /// Takes over the problems of a part, under its name.
    pub fn nest(&mut self, part: &str, inner: Self) {
        inner.kept.into_iter().for_each(|(field, problem)| self.add(format!("{part}.{field}"), problem));
        self.more += inner.more;
    }

    /// Each problem that is kept as (field, what is wrong with it).
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.kept.iter().map(|(field, problem)| (field.as_str(), problem.as_str()))
    }

    /// `Ok` if nothing was noted, else [`Error::Invalid`] with all of it.
    pub fn into_result(self) -> Result<()> {
        if self.kept.is_empty() { Ok(()) } else { Err(Error::Invalid(self)) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (field, problem)) in self.kept.iter().enumerate() {
            write!(f, "{}{field}: {problem}", if i == 0 { "" } else { "; " })?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// An error and its causes, each once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

/// Why JSON could not be read, without any of its values: errors are shown to who may not see params.
pub(crate) fn unreadable(e: &serde_json::Error) -> String {
    let said = e.to_string();
    if e.is_syntax() || e.is_eof() {
        return said;
    }
    let at = if e.line() > 0 { format!(" at line {} column {}", e.line(), e.column()) } else { String::new() };
    let said = said.strip_suffix(&at).unwrap_or(&said);
    let says_no_value = ["missing field", "duplicate field"].iter().any(|start| said.starts_with(start));
    match wanted(said) {
        _ if says_no_value => format!("{said}{at}"),
        Some(wanted) => format!("expected {wanted}{at}"),
        None => format!("not what the handler takes{at}"),
    }
}

/// What serde would have taken, as it says at the end of its own messages. Of others it is not known what they are made of.
fn wanted(said: &str) -> Option<&str> {
    let of_serde = ["invalid type: ", "invalid value: ", "invalid length ", "unknown variant ", "unknown field "];
    let takes_none = said.ends_with(", there are no fields") || said.ends_with(", there are no variants");
    let is_known = of_serde.iter().any(|start| said.starts_with(start)) && !takes_none;
    said.rsplit_once(", expected ").filter(|_| is_known).map(|(_, wanted)| wanted)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "it is only read")]
    struct Card {
        number: u64,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    enum Kind {
        Debit,
        Credit,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "it is only read")]
    enum Either {
        Number(u64),
        Truth(bool),
    }

    fn why<T: DeserializeOwned + fmt::Debug>(json: &str) -> String {
        unreadable(&serde_json::from_str::<T>(json).unwrap_err())
    }

    #[test]
    fn why_json_cannot_be_read_is_said_without_its_values() {
        assert_eq!(why::<Card>("{\"number\": \"4242, expected 17\"}"), "expected u64 at line 1 column 30");
        assert_eq!(why::<Card>("{\"number\": -4242}"), "expected u64 at line 1 column 16");
        assert_eq!(why::<Card>("[4242]"), "expected struct Card with 2 elements at line 1 column 6");
        assert_eq!(why::<Card>("{\"4242\": 1}"), "expected `number` or `kind` at line 1 column 7");
        assert_eq!(why::<Kind>("\"4242\""), "expected `Debit` or `Credit` at line 1 column 6");
        assert_eq!(why::<Nothing>("{\"a, expected 4242\": 1}"), "not what the handler takes at line 1 column 19");
        assert_eq!(why::<Either>("\"4242\""), "not what the handler takes");
        assert_eq!(why::<Card>("{}"), "missing field `number` at line 1 column 2");
        assert_eq!(why::<Card>("{\"number\": 1, \"number\": 4242}"), "duplicate field `number` at line 1 column 22");
        assert_eq!(why::<Card>("{\"number\": 1"), "EOF while parsing an object at line 1 column 12");
        assert_eq!(why::<Card>("{number: 1}"), "key must be a string at line 1 column 2");
        let stored = serde_json::json!({ "number": "4242" });
        assert_eq!(unreadable(&Card::deserialize(&stored).unwrap_err()), "expected u64");
    }

    /// Of what an application says of itself nothing is known.
    #[test]
    fn what_others_say_of_json_is_not_repeated() {
        for said in ["4242 is no card", "no card, expected 4242", "card 4242: invalid type: none, expected 4242"] {
            let e = <serde_json::Error as serde::de::Error>::custom(said);
            assert_eq!(unreadable(&e), "not what the handler takes", "{said}");
        }
    }

    #[test]
    fn of_very_many_problems_a_hundred_are_kept_and_the_others_counted() {
        let mut inner = Problems::default();
        (0..1_000).for_each(|n| inner.add(format!("f{n}"), "is wrong"));
        let mut outer = Problems::default();
        outer.add("g", "is wrong, too");
        outer.nest("part", inner);
        assert_eq!(outer.iter().count(), 100);
        assert_eq!(outer.iter().last(), Some(("part.f98", "is wrong")));
        assert!(outer.to_string().ends_with("; part.f98: is wrong; and 901 more"), "{outer}");
    }
}
