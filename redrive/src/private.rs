//! What `#[retryable]` expands to. Not for use by hand: it changes without notice.
//!
//! Most of it is about types that the macro sees only as names: whether an error knows its kind, whether a result can be
//! JSON. Rust decides that when it looks a method up. `&&&&Seen(error)` is asked for `text()`; the traits that have it are
//! implemented for `&&&Seen`, `&&Seen`, `&Seen` and `Seen` of ever more types, and the lookup, which takes references away
//! one by one, finds the most special one first.

use std::fmt::Display;

pub use inventory;
pub use serde;
use serde::Serialize;
pub use serde_json;
use serde_json::Value;
pub use sqlx;

use crate::classify::{Class, ErrorKind, Failure, Kind};
use crate::clock::Timestamp;
use crate::engine::Verdict;
use crate::error::chain;

/// The two types of a `Result`, whatever it is called.
pub trait IsResult {
    /// What a success gives.
    type Ok;
    /// What a failure gives.
    type Err;
}

impl<T, E> IsResult for Result<T, E> {
    type Ok = T;
    type Err = E;
}

/// An error or a result, to be asked for what its type can do.
#[derive(Debug)]
pub struct Seen<'a, T>(pub &'a T);

/// An error that is a verdict already.
pub trait Decided {
    /// The verdict.
    fn decided(&self) -> Option<Verdict>;
}

impl Decided for &Seen<'_, Verdict> {
    fn decided(&self) -> Option<Verdict> {
        Some(self.0.clone())
    }
}

/// Any other.
pub trait Undecided {
    /// No verdict.
    fn decided(&self) -> Option<Verdict> {
        None
    }
}

impl<E> Undecided for Seen<'_, E> {}

/// An error that knows its kind.
pub trait Kinded {
    /// Its kind.
    fn kind(&self) -> Kind;
}

impl<E: ErrorKind> Kinded for &Seen<'_, E> {
    fn kind(&self) -> Kind {
        self.0.kind()
    }
}

/// Any other.
pub trait Kindless {
    /// The kind of errors that say nothing of themselves.
    fn kind(&self) -> Kind {
        Kind::ERROR
    }
}

impl<E> Kindless for Seen<'_, E> {}

/// An error in a box, which is not an error itself but has one with causes.
pub trait Told {
    /// It and its causes.
    fn text(&self) -> String;
}

impl Told for &&&Seen<'_, Box<dyn std::error::Error + Send + Sync>> {
    fn text(&self) -> String {
        chain(&**self.0)
    }
}

/// An error with causes.
pub trait Described {
    /// It and its causes.
    fn text(&self) -> String;
}

impl<E: std::error::Error> Described for &&Seen<'_, E> {
    fn text(&self) -> String {
        chain(self.0)
    }
}

/// An error that can be shown; `anyhow::Error` and its like show their causes when asked for the long form.
pub trait Shown {
    /// What it shows.
    fn text(&self) -> String;
}

impl<E: Display> Shown for &Seen<'_, E> {
    fn text(&self) -> String {
        format!("{:#}", self.0)
    }
}

/// An error that cannot be shown. It is refused elsewhere; without this it would be refused here as well, less clearly.
pub trait Mute {
    /// Nothing.
    fn text(&self) -> String {
        String::new()
    }
}

impl<E> Mute for Seen<'_, E> {}

/// A result that can be JSON.
pub trait Json {
    /// The JSON.
    fn json(&self) -> Option<Value>;
}

impl<T: Serialize> Json for &Seen<'_, T> {
    fn json(&self) -> Option<Value> {
        json(self.0)
    }
}

/// Any other.
pub trait NoJson {
    /// No JSON.
    fn json(&self) -> Option<Value> {
        None
    }
}

impl<T> NoJson for Seen<'_, T> {}

/// A result that must be JSON.
pub fn json(output: &impl Serialize) -> Option<Value> {
    serde_json::to_value(output).ok()
}

/// An error that the policy's lists decide about.
pub fn failed(kind: Kind, text: String) -> Verdict {
    Verdict::Failed(Failure::retry(kind, text))
}

/// Not to be tried again, unless the call itself has decided otherwise.
pub fn fatal(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Failed(failure) => Verdict::Fatal(Failure { class: Class::Reject, ..failure }),
        decided => decided,
    }
}

/// To be tried again, unless the call itself has decided otherwise.
pub fn retry(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Failed(failure) => Verdict::Listed(failure),
        decided => decided,
    }
}

/// Whether a result passes a test. It tells the compiler what the closure is given.
pub fn holds<T>(output: &T, test: impl FnOnce(&T) -> bool) -> bool {
    test(output)
}

/// A moment that may be given directly, by reference, and not at all.
#[diagnostic::on_unimplemented(
    message = "a deadline is a `redrive::Timestamp` or an `Option` of one, not `{Self}`",
    label = "not a `Timestamp`"
)]
pub trait Deadline {
    /// The moment, if there is one.
    fn moment(self) -> Option<Timestamp>;
}

impl Deadline for Timestamp {
    fn moment(self) -> Option<Timestamp> {
        Some(self)
    }
}

impl Deadline for Option<Timestamp> {
    fn moment(self) -> Option<Timestamp> {
        self
    }
}

impl<D: Deadline + Copy> Deadline for &D {
    fn moment(self) -> Option<Timestamp> {
        (*self).moment()
    }
}

/// The policy's deadline.
pub fn deadline(at: impl Deadline) -> Option<Timestamp> {
    at.moment()
}
