//! HTTP tasks: "deliver this request until it succeeds".
//!
//! | file | what |
//! | --- | --- |
//! | `request` | what is asked for and stored as a task's params |
//! | `target` | named targets: where a request goes, and the secrets that go along and are stored nowhere |
//! | `guard` | which addresses may be called |
//! | `resolve` | the addresses of names, of which those that do not answer hold up no others |
//! | `redirect` | what becomes of an answer that names another address |
//! | `headers` | what is sent beside what the caller says: signature, idempotency key, fence |
//! | `answer` | what came back, bounded |
//! | `deliver` | one attempt |
//! | `call` | the above as a call that the engine makes good |
//!
//! Every target is a method of its own, `http.billing`; requests without one are `http`. So a target has its own lane: its
//! limits, its pause and its backlog are its own, and one that hangs holds up nobody else.

mod answer;
mod call;
mod deliver;
mod guard;
mod headers;
mod redirect;
mod request;
mod resolve;
mod target;

pub use answer::Answer;
pub use call::{CallFailed, HttpCall};
pub(crate) use deliver::tls;
pub use deliver::{DeliveryError, HttpDelivery};
pub use guard::{Guard, Refused};
pub(crate) use headers::visible;
pub use request::HttpRequest;
pub use target::Target;

/// The method of requests without a target, and the start of the others'.
pub const METHOD: &str = "http";

/// The method of requests to this target.
pub fn method_of(target: Option<&str>) -> String {
    target.map_or_else(|| METHOD.to_owned(), |target| format!("{METHOD}.{target}"))
}
