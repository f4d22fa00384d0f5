//! `#[retryable]`: what a fn with this attribute becomes.
//!
//! Most of it can be asked of the call itself, without an engine; the last tests run calls, on a database in memory.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use redrive::testing::Testing;
use redrive::{
    Backoff, Business, Class, Context, ErrorKind, FinalFailure, Jitter, Key, Kind, Notify, OnCrash, OnExhausted,
    Persist, Policy, Registration, Retryable, Succeeded, Timestamp, Verdict, retryable,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    expires_at: Timestamp,
}

fn order() -> Order {
    Order { id: 7, expires_at: Timestamp::from_millis(2_000_000_000_000) }
}

#[derive(Debug, PartialEq, Serialize)]
struct Receipt {
    code: u16,
}

#[derive(Debug, ErrorKind)]
enum PayError {
    Timeout(u32),
    Declined {
        why: String,
    },
    #[kind("http.503")]
    Busy,
    Other,
}

impl fmt::Display for PayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no payment: {self:?}")
    }
}
impl StdError for PayError {}

/// All options at once.
#[retryable(
    name = "everything",
    max_attempts = 5,
    backoff = exponential(initial = "2s", factor = 1.5, max = "5m"),
    jitter = proportional(0.2),
    max_duration = "1h",
    deadline = order.expires_at,
    timeout = "10s",
    persist = on_failure,
    retry_for(PayError::Timeout(..), "http.503"),
    no_retry_for(PayError::Declined { .. }, "http.404"),
    success_if = |r| r.code == 200,
    key = "pay-{order.id}-{note.len() + items.len()}-{{{cents}}}",
    business("order", order.id),
    priority = -5,
    notify(after = "30m"),
    on_exhausted = escalate,
    on_crash = dead,
    max_crashes = 2,
    on_success = callbacks::paid,
    on_final_failure = callbacks::not_paid,
    keep,
    encrypt
)]
async fn everything(
    cx: &Context<'_>,
    order: &Order,
    note: &str,
    items: &[u8],
    mut cents: u64,
) -> Result<Receipt, PayError> {
    cents += u64::from(cx.attempt());
    _ = (order, note, items, cents);
    Ok(Receipt { code: 200 })
}

mod callbacks {
    use super::*;

    #[retryable(name = "paid")]
    pub(super) async fn paid(done: Succeeded) -> Result<(), Verdict> {
        _ = done;
        Ok(())
    }

    #[retryable]
    pub(super) async fn not_paid(gone: &FinalFailure) -> redrive::Result<()> {
        _ = gone;
        Ok(())
    }
}

#[test]
fn every_option_reaches_the_call() {
    let order = order();
    let call = everything(&order, "hi", &[1, 2, 3], 42);
    let wanted = Policy {
        max_attempts: Some(5),
        backoff: Backoff::exponential(Duration::from_secs(2), 1.5, Duration::from_secs(300)),
        jitter: Jitter::Proportional(0.2),
        max_duration: Some(Duration::from_secs(3600)),
        deadline: Some(order.expires_at),
        timeout: Some(Duration::from_secs(10)),
        retry_for: vec![Kind::http(503), Kind::of("(patterns)")],
        no_retry_for: vec![Kind::http(404), Kind::of("(patterns)")],
        notify: Some(Notify::FailingFor(Duration::from_secs(1800))),
        on_exhausted: OnExhausted::Escalate,
        on_crash: OnCrash::Dead,
        max_crashes: 2,
        keep: true,
        ..Policy::default()
    };
    assert_eq!(call.policy(Policy::default()), wanted);
    wanted.validate().unwrap();
    assert_eq!(call.persist(), Some(Persist::OnFailure));
    assert_eq!(call.key(), Key::Given("pay-7-5-{42}".into()));
    assert_eq!(call.business(), Some(Business { kind: "order".into(), id: "7".into() }));
    assert_eq!(call.priority(), -5);
    assert!(call.encrypt());
    assert!(call.is_success(&Receipt { code: 200 }) && !call.is_success(&Receipt { code: 500 }));
    assert_eq!(call.result(&Receipt { code: 200 }), Some(json!({"code": 200})));
    assert_eq!(call.on_success(), Some("paid"));
    assert_eq!(call.on_final_failure(), Some("retryable_macro::callbacks::not_paid"));
}

#[retryable]
async fn bare(n: u32) -> Result<u32, fmt::Error> {
    Ok(n)
}

#[test]
fn a_bare_attribute_leaves_all_to_the_defaults() {
    let defaults = Policy { max_attempts: Some(3), retry_for: vec![Kind::TIMEOUT], ..Policy::default() };
    let call = bare(1);
    assert_eq!(<bare as Retryable>::METHOD, "retryable_macro::bare");
    assert_eq!(call.policy(defaults.clone()), defaults);
    assert_eq!((call.persist(), call.key(), call.business()), (None, Key::FromParams, None));
    assert_eq!((call.priority(), call.encrypt(), call.on_success(), call.on_final_failure()), (0, false, None, None));
    assert!(call.is_success(&1));
}

fn registered(method: &str) -> bool {
    redrive::__private::inventory::iter::<Registration>.into_iter().any(|found| found.method() == method)
}

#[test]
fn calls_register_themselves() {
    for method in ["everything", "paid", "retryable_macro::callbacks::not_paid", "retryable_macro::bare"] {
        assert!(registered(method), "{method}");
    }
    assert!(!registered("nobody"));
}

mod forms {
    use super::*;

    #[retryable(name = "forms.none")]
    pub(super) async fn none() -> Result<(), Verdict> {
        Ok(())
    }

    #[retryable(name = "forms.owned")]
    pub(super) async fn owned(a: u8, r#type: Option<String>) -> Result<(), Verdict> {
        _ = (a, r#type);
        Ok(())
    }

    #[retryable(name = "forms.borrowed")]
    pub(super) async fn borrowed(items: &[Order]) -> Result<(), Verdict> {
        _ = items;
        Ok(())
    }

    #[retryable(name = "forms.grown")]
    pub(super) async fn grown(a: u8, #[serde(default)] b: Vec<u8>) -> Result<(), Verdict> {
        _ = (a, b);
        Ok(())
    }
}

#[test]
fn one_argument_is_stored_as_it_is_several_by_name_none_as_null() {
    let json = |call: &dyn Fn() -> serde_json::Result<Value>| call().unwrap();
    assert_eq!(json(&|| serde_json::to_value(forms::none())), Value::Null);
    assert_eq!(json(&|| serde_json::to_value(bare(5))), json!(5));
    assert_eq!(json(&|| serde_json::to_value(forms::owned(5, None))), json!({"a": 5, "type": null}));
    assert_eq!(json(&|| serde_json::to_value(forms::borrowed(&[order()]))), json!([order()]));

    let owned: forms::owned = serde_json::from_value(json!({"a": 5, "type": "x"})).unwrap();
    assert_eq!(serde_json::to_value(owned).unwrap(), json!({"a": 5, "type": "x"}));
    assert!(serde_json::from_value::<forms::none>(Value::Null).is_ok());
    assert!(serde_json::from_value::<forms::none>(json!({"a": 5})).is_err());
}

#[test]
fn a_new_argument_may_have_a_default_for_tasks_from_before() {
    let call: forms::grown = serde_json::from_value(json!({"a": 5})).unwrap();
    assert_eq!(serde_json::to_value(call).unwrap(), json!({"a": 5, "b": []}));
}

/// The settings name kinds; they can except what a pattern in the code includes.
#[tokio::test]
async fn no_retry_for_wins_over_patterns() {
    let settings =
        redrive::Settings::parse("[methods.'lists.failing']\nno_retry_for = ['Timeout']", [].into_iter()).unwrap();
    let test = redrive::testing::Testing::with(|builder| builder.settings(settings)).await;
    let called = test.call(lists::failing()).await;
    assert!(matches!(called, Err(redrive::CallError::Rejected { .. })), "{called:?}");
}

mod lists {
    use super::*;

    #[retryable(name = "lists.patterns", retry_for(PayError::Timeout(n) if *n < 10, PayError::Busy | PayError::Other))]
    pub(super) async fn patterns() -> Result<(), PayError> {
        Ok(())
    }

    #[retryable(name = "lists.failing", retry_for(PayError::Timeout(..)))]
    pub(super) async fn failing() -> Result<(), PayError> {
        Err(PayError::Timeout(1))
    }

    #[retryable(name = "lists.both", retry_for(PayError::Timeout(..), "http.503"), no_retry_for(PayError::Declined { why } if why == "no"))]
    pub(super) async fn both() -> Result<(), PayError> {
        Ok(())
    }

    #[retryable(name = "lists.verdict", retry_for(Verdict::Retry(_)))]
    pub(super) async fn verdict() -> Result<(), Verdict> {
        Ok(())
    }
}

/// The name of the verdict and the kind.
fn said(verdict: &Verdict) -> (&'static str, &str) {
    match verdict {
        Verdict::Failed(failure) => ("failed", failure.kind.as_str()),
        Verdict::Listed(failure) => ("listed", failure.kind.as_str()),
        Verdict::Retry(failure) => ("retry", failure.kind.as_str()),
        Verdict::Fatal(failure) => ("fatal", failure.kind.as_str()),
        Verdict::Snooze(_) => ("snooze", ""),
        _ => ("other", ""),
    }
}

#[test]
fn patterns_alone_decide_alone() {
    let classify = |error| lists::patterns().classify(&error);
    assert_eq!(said(&classify(PayError::Other)), ("listed", "Other"));
    assert_eq!(said(&classify(PayError::Timeout(5))), ("listed", "Timeout"));
    assert_eq!(said(&classify(PayError::Timeout(10))), ("failed", "Timeout"));
    assert_eq!(said(&classify(PayError::Busy)), ("listed", "http.503"));
    assert_eq!(said(&classify(PayError::Declined { why: "no".into() })), ("failed", "Declined"));
    let policy = lists::patterns().policy(Policy { retry_for: vec![Kind::PANIC], ..Policy::default() });
    assert_eq!(policy.retry_for, [Kind::of("(patterns)")], "the lists of a method replace those of the settings");
    assert_eq!(policy.classify(&Kind::of("Declined")), Class::Reject, "what no pattern matches");
}

#[test]
fn where_kinds_are_named_too_the_policy_decides_what_no_pattern_matches() {
    let classify = |error| lists::both().classify(&error);
    assert_eq!(said(&classify(PayError::Timeout(5))), ("listed", "Timeout"));
    assert_eq!(said(&classify(PayError::Declined { why: "no".into() })), ("fatal", "Declined"));
    assert_eq!(said(&classify(PayError::Declined { why: "poor".into() })), ("failed", "Declined"));
    assert_eq!(said(&classify(PayError::Busy)), ("failed", "http.503"));
}

#[test]
fn what_a_call_decides_itself_stands() {
    let classify = |verdict| lists::verdict().classify(&verdict);
    assert_eq!(said(&classify(Verdict::Snooze(Duration::from_secs(1)))), ("snooze", ""));
    assert_eq!(said(&classify(Verdict::fatal("no"))), ("fatal", "error"));
    assert_eq!(
        said(&classify(fmt::Error.into())),
        ("failed", "error"),
        "none of the patterns matches: the policy decides"
    );
}

#[derive(Debug)]
struct Caused(fmt::Error);

impl fmt::Display for Caused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection")
    }
}
impl StdError for Caused {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

#[derive(Debug, ErrorKind)]
#[kind("connect")]
struct Plain;

impl fmt::Display for Plain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if f.alternate() { "at length" } else { "in short" })
    }
}

mod errors {
    use super::*;

    #[retryable(name = "errors.caused")]
    pub(super) async fn caused() -> Result<(), Caused> {
        Ok(())
    }
    #[retryable(name = "errors.boxed")]
    pub(super) async fn boxed() -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(())
    }
    #[retryable(name = "errors.anyhow")]
    pub(super) async fn by_anyhow() -> anyhow::Result<()> {
        Ok(())
    }
    #[retryable(name = "errors.plain")]
    pub(super) async fn plain() -> Result<(), Plain> {
        Ok(())
    }
    #[retryable(name = "errors.text")]
    pub(super) async fn text() -> Result<(), String> {
        Ok(())
    }
}

#[test]
fn an_error_tells_all_that_it_can() {
    let told = |verdict| match verdict {
        Verdict::Failed(failure) => (failure.kind.to_string(), failure.message),
        other => panic!("{other:?}"),
    };
    let whole = "no connection: an error occurred when formatting an argument";
    let (error, connect) = ("error".to_owned(), "connect".to_owned());
    assert_eq!(told(errors::caused().classify(&Caused(fmt::Error))), (error.clone(), whole.into()));
    assert_eq!(told(errors::boxed().classify(&Caused(fmt::Error).into())), (error.clone(), whole.into()));
    assert_eq!(told(errors::by_anyhow().classify(&Caused(fmt::Error).into())), (error.clone(), whole.into()));
    assert_eq!(told(errors::plain().classify(&Plain)), (connect, "at length".into()));
    assert_eq!(told(errors::text().classify(&"text".into())), (error, "text".into()));
}

mod results {
    use super::*;

    pub(super) struct Opaque;

    #[retryable(name = "results.opaque")]
    pub(super) async fn opaque() -> Result<Opaque, String> {
        Ok(Opaque)
    }

    #[retryable(name = "results.cel", success_if = "result.code == 200")]
    pub(super) async fn cel() -> Result<Receipt, String> {
        Ok(Receipt { code: 200 })
    }

    fn fine(n: &u32) -> bool {
        *n > 5
    }

    #[retryable(name = "results.path", success_if = fine)]
    pub(super) async fn path() -> Result<u32, String> {
        Ok(6)
    }

    #[retryable(name = "results.arguments", success_if = |n| n >= least, deadline = until)]
    pub(super) async fn arguments(least: u32, until: Option<Timestamp>) -> Result<u32, String> {
        _ = (least, until);
        Ok(6)
    }
}

#[test]
fn a_result_that_cannot_be_json_is_none() {
    assert_eq!(results::opaque().result(&results::Opaque), None);
    assert_eq!(results::cel().result(&Receipt { code: 5 }), Some(json!({"code": 5})));
}

#[test]
fn success_is_a_closure_a_fn_or_cel() {
    assert!(results::path().is_success(&6) && !results::path().is_success(&5));
    assert_eq!(results::cel().policy(Policy::default()).success_if.as_deref(), Some("result.code == 200"));
}

#[test]
fn expressions_see_the_arguments() {
    let moment = Timestamp::from_millis(5);
    let call = |until| results::arguments(6, until);
    assert!(call(None).is_success(&6) && !call(None).is_success(&5));
    let defaults = || Policy { deadline: Some(moment), ..Policy::default() };
    assert_eq!(call(None).policy(defaults()).deadline, None);
    assert_eq!(call(Some(moment)).policy(Policy::default()).deadline, Some(moment));
}

/// Names that the expansion uses as well.
mod names {
    use super::*;

    #[derive(Clone, Serialize, Deserialize)]
    pub(super) struct Body {
        pub(super) id: u8,
    }
    pub(super) type Stored = Body;

    #[retryable(name = "names", key = "{defaults}-{error}-{output.id}-{verdict}", deadline = Timestamp::from_millis(*nothing))]
    pub(super) async fn names(
        defaults: u8,
        error: &str,
        output: &Stored,
        verdict: bool,
        nothing: i64,
        cx: u8,
    ) -> Result<Body, String> {
        _ = (defaults, error, verdict, nothing, cx);
        Ok(output.clone())
    }
}

#[test]
fn arguments_and_types_may_be_called_as_one_likes() {
    let body = names::Body { id: 3 };
    let call = names::names(1, "two", &body, true, 5, 6);
    assert_eq!(call.key(), Key::Given("1-two-3-true".into()));
    assert_eq!(call.policy(Policy::default()).deadline, Some(Timestamp::from_millis(5)));
}

mod run {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    pub(super) struct Log(pub(super) Arc<Mutex<Vec<String>>>);

    impl Log {
        pub(super) fn say(&self, what: impl Into<String>) {
            self.0.lock().unwrap().push(what.into());
        }
        pub(super) fn said(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    #[retryable(name = "run.flaky", key = "{name}-{order.id}", on_success = told)]
    pub(super) async fn flaky(
        cx: &Context<'_>,
        name: &str,
        order: &Order,
        tags: Vec<String>,
    ) -> redrive::Result<usize> {
        cx.state::<Log>()?.say(format!("{} {name} {} {tags:?}", cx.attempt(), order.id));
        if cx.attempt() < 3 { Err(redrive::Error::invalid("order", "not yet")) } else { Ok(tags.len()) }
    }

    #[retryable(name = "run.told")]
    pub(super) async fn told(cx: &Context<'_>, done: Succeeded<usize>) -> Result<(), Verdict> {
        cx.state::<Log>()?.say(format!("{} gave {}", done.method, done.result));
        Ok(())
    }

    /// The name of the fn means the same in its body as elsewhere: it makes a call.
    #[retryable(name = "run.next")]
    pub(super) async fn next(cx: &Context<'_>, page: u32) -> redrive::Result<Option<Key>> {
        cx.state::<Log>()?.say(format!("page {page}"));
        Ok((page < 3).then(|| next(page + 1).key()))
    }

    #[retryable(name = "run.nothing", persist = always)]
    #[tracing::instrument(skip_all)]
    pub(super) async fn nothing(cx: &Context<'_>) -> redrive::Result<()> {
        cx.state::<Log>()?.say("nothing");
        if cx.attempt() == 1 { Err(redrive::Error::invalid("it", "fails once")) } else { Ok(()) }
    }
}

#[tokio::test]
async fn a_call_is_tried_here_and_then_from_what_was_stored() {
    let log = run::Log::default();
    let test = Testing::with(|builder| builder.state(log.clone())).await;
    let tags = vec!["a".to_owned(), "b".to_owned()];
    let deferred = test.call(run::flaky("ann", &order(), tags.clone())).await.unwrap_err();
    assert!(deferred.is_deferred(), "{deferred}");
    let task = test.waiting().await.remove(0);
    assert_eq!((task.method.as_str(), task.key.as_deref()), ("run.flaky", Some("ann-7")));
    assert_eq!(
        serde_json::from_str::<Value>(&task.params).unwrap(),
        json!({"name": "ann", "order": order(), "tags": tags})
    );
    test.drain().await;
    let tries = (1..=3).map(|n| format!("{n} ann 7 [\"a\", \"b\"]"));
    assert_eq!(log.said(), tries.chain(["run.flaky gave 2".to_owned()]).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_call_without_arguments_is_read_back() {
    let log = run::Log::default();
    let test = Testing::with(|builder| builder.state(log.clone())).await;
    assert!(test.call(run::nothing()).await.unwrap_err().is_deferred());
    test.drain().await;
    assert_eq!(log.said(), ["nothing", "nothing"]);
}

#[tokio::test]
async fn in_its_own_body_the_fn_makes_a_call_as_everywhere() {
    let log = run::Log::default();
    let test = Testing::with(|builder| builder.state(log.clone())).await;
    assert_eq!(test.call(run::next(1)).await.unwrap(), Some(Key::FromParams));
    assert_eq!(test.call(run::next(3)).await.unwrap(), None);
}
