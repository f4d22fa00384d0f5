//! Success conditions in CEL: `result.code == 200`. Compiled once, kept for the next result.
//!
//! What a condition is about depends on the call: `result` is there for all; an HTTP delivery also gives `status`, `headers`
//! and `body`. A call that has more than its result to give says so in
//! [`Retryable::meets`](crate::Retryable::meets).
//!
//! A condition that cannot be evaluated (a field is missing, types do not fit, it does not give a truth value) is not met: the
//! attempt has failed and is tried again. Why is logged, since that is mostly a mistake in the condition.
//!
//! *Invariants.* Conditions come over the API, so none may be able to end the process or to keep a thread busy for ever. Reading one
//! takes a stack in proportion to its length, so it is read on a stack of its own and has at most 1,024 bytes; evaluating
//! and dropping it takes one in proportion to its depth, which is at most 50; and loops within loops, each of which
//! multiplies the work, are at most two.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use cel::common::ast::{EntryExpr, Expr, IdedEntryExpr};
use cel::{Context, IdedExpr, Program, Value};

/// The most bytes of a condition.
pub(crate) const LONGEST: usize = 1_024;
/// How deep an expression may be within others.
const DEEPEST: usize = 50;
/// How many loops (`all`, `exists`, `map`, `filter`) may be within one another.
const MOST_LOOPS: usize = 2;
/// Enough for the longest condition, also without optimisation: it takes about 30 KiB a byte then.
const STACK: usize = 64 << 20;
/// How many compiled conditions are kept.
const KEPT: usize = 1_000;

static COMPILED: LazyLock<RwLock<HashMap<String, Arc<Program>>>> = LazyLock::new(RwLock::default);

/// Whether it is a condition; if not, why.
pub(crate) fn check(cel: &str) -> Result<(), String> {
    let ok = !cel.trim().is_empty() && cel.len() <= LONGEST && !cel.contains('\0');
    ok.then_some(()).ok_or_else(|| format!("must be an expression of 1 to {LONGEST} bytes"))?;
    compiled(cel).map(|_| ()).map_err(|why| format!("{cel:?} is not CEL: {why}"))
}

/// Whether the condition holds for this result.
pub(crate) fn holds_for_result(cel: &str, result: &serde_json::Value) -> bool {
    holds(cel, &[("result", result)])
}

/// Whether a condition holds for variables of these names.
///
/// ```
/// use redrive::condition;
/// use serde_json::json;
///
/// let (status, body) = (json!(202), json!({"state": "accepted"}));
/// assert!(condition::holds("status < 300 && body.state == 'accepted'", &[("status", &status), ("body", &body)]));
/// assert!(!condition::holds("headers.etag == 'x'", &[("status", &status)])); // there is no such variable
/// ```
pub fn holds(cel: &str, variables: &[(&str, &serde_json::Value)]) -> bool {
    match evaluate(cel, variables) {
        Ok(holds) => holds,
        Err(why) => {
            tracing::warn!(condition = cel, why, "a success condition could not be evaluated, so it is not met");
            false
        }
    }
}

fn evaluate(cel: &str, variables: &[(&str, &serde_json::Value)]) -> Result<bool, String> {
    let program = compiled(cel)?;
    let mut context = Context::default();
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value));
    }
    match program.execute(&context) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(format!("it gives {:?}, not true or false", other.type_of())),
        Err(e) => Err(e.to_string()),
    }
}

/// JSON as CEL sees it: whole numbers are `int`, as CEL's own literals are.
fn to_cel(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(*b),
        serde_json::Value::Number(n) => {
            n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Int)
        }
        serde_json::Value::String(s) => Value::String(Arc::new(s.clone())),
        serde_json::Value::Array(all) => Value::List(Arc::new(all.iter().map(to_cel).collect())),
        serde_json::Value::Object(all) => Value::from(
            all.iter().map(|(name, value)| (name.clone(), to_cel(value))).collect::<HashMap<String, Value>>(),
        ),
    }
}

fn compiled(cel: &str) -> Result<Arc<Program>, String> {
    let kept = COMPILED.read().unwrap_or_else(PoisonError::into_inner).get(cel).cloned();
    if let Some(program) = kept {
        return Ok(program);
    }
    let program = Arc::new(read(cel)?);
    let mut kept = COMPILED.write().unwrap_or_else(PoisonError::into_inner);
    if kept.len() >= KEPT {
        kept.clear();
    }
    kept.insert(cel.to_owned(), program.clone());
    Ok(program)
}

/// Reads a condition, on a stack that is large enough.
fn read(cel: &str) -> Result<Program, String> {
    if cel.len() > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, || {
            let program = Program::compile(cel).map_err(|e| first_line(&e.to_string()))?;
            measure(program.expression(), 0, 0)?;
            Ok(program)
        });
        let read = reader.map_err(|e| format!("no thread to read it on: {e}"))?.join();
        read.unwrap_or_else(|_| Err("it cannot be read".into()))
    })
}

/// Of a whole list of mistakes, with the condition below each, the first is enough.
fn first_line(mistakes: &str) -> String {
    mistakes.lines().next().unwrap_or_default().trim_start_matches("ERROR: <input>:").to_owned()
}

/// Whether it is neither too deep nor has too many loops within one another.
fn measure(expression: &IdedExpr, depth: usize, loops: usize) -> Result<(), String> {
    if depth > DEEPEST {
        return Err(format!("expressions are more than {DEEPEST} deep within one another"));
    }
    if loops > MOST_LOOPS {
        return Err(format!("more than {MOST_LOOPS} loops are within one another"));
    }
    let below = |parts: &mut dyn Iterator<Item = &IdedExpr>, loops| {
        for part in parts {
            measure(part, depth + 1, loops)?;
        }
        Ok(())
    };
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Ok(()),
        Expr::Call(call) => below(&mut call.target.as_deref().into_iter().chain(&call.args), loops),
        Expr::Select(select) => below(&mut std::iter::once(&*select.operand), loops),
        Expr::List(list) => below(&mut list.elements.iter(), loops),
        Expr::Map(map) => below(&mut map.entries.iter().flat_map(parts), loops),
        Expr::Struct(all) => below(&mut all.entries.iter().flat_map(parts), loops),
        Expr::Comprehension(all) => {
            below(&mut [&all.iter_range, &all.accu_init, &all.result].into_iter(), loops)?;
            below(&mut [&all.loop_cond, &all.loop_step].into_iter(), loops + 1)
        }
    }
}

fn parts(entry: &IdedEntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (key, value) = match &entry.expr {
        EntryExpr::MapEntry(entry) => (Some(&entry.key), &entry.value),
        EntryExpr::StructField(field) => (None, &field.value),
    };
    key.into_iter().chain([value])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn results_are_judged() {
        let result = json!({"code": 200, "ok": true, "tags": ["a"], "rate": 0.5, "text": "fine"});
        for cel in [
            "result.code == 200",
            "result.code < 300 && result.ok",
            "'a' in result.tags",
            "result.rate < 1.0",
            "result.text.startsWith('fi')",
        ] {
            assert!(holds_for_result(cel, &result), "{cel}");
        }
        for cel in ["result.code == 500", "result.missing == 1", "result.code", "result.text < 5"] {
            assert!(!holds_for_result(cel, &result), "{cel}");
        }
    }

    #[test]
    fn an_answer_is_judged_by_its_parts() {
        let (status, headers) = (json!(409), json!({"x-state": "done", "content-type": "text/plain"}));
        let holds = |cel: &str, body: serde_json::Value| {
            holds(cel, &[("status", &status), ("headers", &headers), ("body", &body)])
        };
        assert!(holds("status == 409 || status < 300", json!("already there")));
        assert!(holds("headers['x-state'] == 'done'", json!(null)));
        assert!(holds("body.items.size() == 2", json!({"items": [1, 2]})));
        assert!(holds("body.contains('there')", json!("already there")));
        assert!(!holds("body.ok", json!("not JSON, so it has no fields")));
        assert!(!holds("headers['x-other'] == 'done'", json!(null)));
        assert!(holds("!has(body.error)", json!({"ok": true})));
    }

    #[test]
    fn what_is_not_cel_is_refused() {
        assert!(check("result.code ==").is_err());
        assert!(check("result.code == 200").is_ok());
    }

    #[test]
    fn none_ends_the_process_or_goes_on_for_ever() {
        let repeated = |begin: &str, again: &str, end: &str| {
            let n = (LONGEST - begin.len() - end.len()) / again.len();
            format!("{begin}{}{end}", again.repeat(n))
        };
        let loops = |n: usize| (0..n).fold("true".to_owned(), |inner, n| format!("result.all(x{n}, {inner})"));
        let brackets = |open: &str, shut: &str| format!("{}1{}", open.repeat(500), shut.repeat(500));
        let hostile = [
            repeated("1", "+1", " > 0"),
            repeated("result", "[0]", ""),
            repeated("result", ".a", ""),
            repeated("", "true ? 1 : ", "1"),
            brackets("(", ")"),
            brackets("[", "]"),
            brackets("{1:", "}"),
            loops(3),
            loops(20),
            "x".repeat(LONGEST + 1),
        ];
        for cel in hostile {
            let said = check(&cel).unwrap_err();
            assert!(said.len() < 2 * LONGEST && !holds_for_result(&cel, &json!([1])), "{said}");
        }
        // What is as large as it may be is evaluated on an ordinary stack.
        let deepest = format!("1{} > 0", "+1".repeat(DEEPEST - 2));
        assert!(check(&deepest).is_ok() && holds_for_result(&deepest, &json!(null)));
        assert!(holds_for_result(&repeated("true", " && true", ""), &json!(null)));
        assert!(holds_for_result(&loops(2), &json!([1, 2])));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_sent_is_read_or_refused(
            cel in r#"([a-z0-9 .()\[\]{}+*/%<>=!&|?:,"'-]|result|true|1e9|all\(x,|\\u00){0,40}"#
        ) {
            if check(&cel).is_ok() {
                holds_for_result(&cel, &json!({"a": [1, -1, 1.5, "x", null, true]}));
            }
        }
    }
}
