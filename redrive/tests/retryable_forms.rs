//! Strict lints, docs, other attributes, and a fn that lives in a fn.

#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    rust_2018_idioms,
    elided_lifetimes_in_paths
)]
#![forbid(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use redrive::testing::Testing;
use redrive::{Context, Retryable, retryable};

/// Pays.
#[retryable(name = "pay", on_success = paid, key = "{order}")]
#[allow(clippy::unused_async)]
async fn pay(cx: &Context<'_>, order: &str, cents: u64) -> Result<(), std::io::Error> {
    let _ = (cx.attempt(), order, cents);
    Ok(())
}

#[retryable]
async fn paid(done: &redrive::Succeeded) -> redrive::Result<()> {
    let _ = done;
    Ok(())
}

mod own {
    /// Has the name of one of the standard library's types, but a size.
    #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
    pub(super) struct Path(pub(super) u8);
}

type Log = Arc<Mutex<Vec<String>>>;

/// What has no size is stored as what owns it.
#[retryable(name = "upload")]
async fn upload(cx: &Context<'_>, file: &Path, name: &OsStr, title: &CStr, way: &own::Path) -> redrive::Result<()> {
    let seen = format!("{} {name:?} {title:?} {}", file.display(), way.0);
    cx.state::<Log>()?.lock().unwrap().push(seen);
    if cx.attempt() == 1 { Err(redrive::Error::invalid("it", "fails once")) } else { Ok(()) }
}

#[retryable]
#[cfg(any())]
async fn not_here(order: &Missing) -> Missing {}

#[test]
fn strict_lints_let_it_pass_and_names_are_as_given() {
    #[retryable(name = "local")]
    async fn local(n: u8) -> Result<u8, String> {
        Ok(n)
    }
    let _ = (pay("a", 5), local(5));
    assert_eq!((<pay<'_> as Retryable>::METHOD, <local as Retryable>::METHOD), ("pay", "local"));
    assert!(<paid<'_> as Retryable>::METHOD.ends_with("::paid"));
}

#[tokio::test]
async fn what_has_no_size_is_read_back_as_it_was_given() {
    let log = Log::default();
    let test = Testing::with(|builder| builder.state(log.clone())).await;
    let call = upload(Path::new("/tmp/a"), OsStr::new("b"), c"c", &own::Path(5));
    assert!(test.call(call).await.unwrap_err().is_deferred());
    assert!(test.waiting().await[0].params.contains(r#""file":"/tmp/a""#));
    test.drain().await;
    assert_eq!(*log.lock().unwrap(), [r#"/tmp/a "b" "c" 5"#; 2]);
}
