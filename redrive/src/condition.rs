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
//! and dropping it takes one in proportion to its depth, which is at most 50.
//!
//! The work and the memory that it takes are in proportion to what it is about. So a loop (`all`, `exists`, `exists_one`, `map`, `filter`)
//! goes over a part of that, of at most 10,000 items, never over what another loop gives; there is none within it; it looks at its
//! own item alone; and it puts few values together. What is refused could multiply, and can be said otherwise.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedEntryExpr, operators};
use cel::{Context, IdedExpr, Program, Value};

/// The most bytes of a condition.
pub(crate) const LONGEST: usize = 1_024;
/// How deep an expression may be within others.
const DEEPEST: usize = 50;
/// How many loops there may be, beside one another.
const MOST_LOOPS: usize = 4;
/// How many items a loop may go over.
const MOST_ITEMS: usize = 10_000;
/// How many values may be put together (`+`, lists, maps), in the whole and in one loop. A `map` puts two together by itself.
const MOST_JOINED: usize = 50;
const MOST_JOINED_IN_LOOP: usize = 8;
/// What a loop may name besides its own item: a type is as good as a constant.
const TYPES: [&str; 10] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];
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
    for range in ranges(program.expression()) {
        bound(range, &context)?;
    }
    match program.execute(&context) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(other) => Err(format!("it gives {:?}, not true or false", other.type_of())),
        Err(e) => Err(e.to_string()),
    }
}

/// Whether a loop over this is not too long. What cannot be looped over, or is not there, is the loop's own mistake.
fn bound(range: &IdedExpr, context: &Context<'_, '_>) -> Result<(), String> {
    let range = Value::resolve_val(range, context).ok().filter(|range| range.as_iterable().is_some());
    let items = range.and_then(|range| range.as_sizer().map(|range| *range.size().inner()));
    match items.and_then(|items| usize::try_from(items).ok()).filter(|items| *items > MOST_ITEMS) {
        Some(items) => Err(format!("it has a loop over {items} items; one over more than {MOST_ITEMS} does not hold")),
        None => Ok(()),
    }
}

/// What its loops go over.
fn ranges(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Comprehension(all) => vec![&all.iter_range],
        _ => parts(expression).into_iter().flat_map(ranges).collect(),
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
            Measured::default().add(program.expression(), 0, Place::Outside)?;
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

/// Where a part of a condition is.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Outside,
    /// What a loop goes over.
    Range,
    /// What is done with each item.
    Loop(&'a ComprehensionExpr),
}

/// What there may not be too much of.
#[derive(Debug, Default)]
struct Measured {
    loops: usize,
    joined: usize,
    /// In the loop that is looked at.
    joined_in_loop: usize,
}

impl Measured {
    /// Whether it is neither too deep nor could multiply what it is about.
    fn add(&mut self, expression: &IdedExpr, depth: usize, place: Place<'_>) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!("expressions are more than {DEEPEST} deep within one another"));
        }
        if let Expr::Comprehension(all) = &expression.expr {
            return self.add_loop(all, depth + 1, place);
        }
        self.add_joined(joined(expression), place)?;
        may_name(expression, place)?;
        parts(expression).into_iter().try_for_each(|part| self.add(part, depth + 1, place))
    }

    fn add_loop(&mut self, all: &ComprehensionExpr, depth: usize, place: Place<'_>) -> Result<(), String> {
        match place {
            Place::Outside => {}
            Place::Range => {
                return Err("a loop goes over what another gives; write one loop over the list itself: \
                                        list.all(x, !(f) || g) for list.filter(x, f).all(x, g)"
                    .into());
            }
            Place::Loop(_) => {
                return Err("a loop is within another; ask of what is in an item with `in`, `==` and size(), or let \
                                          the target answer with a flat list"
                    .into());
            }
        }
        self.loops += 1;
        if self.loops > MOST_LOOPS {
            return Err(format!(
                "there are more than {MOST_LOOPS} loops; write one that asks for several things: list.all(x, f && g)"
            ));
        }
        self.joined_in_loop = 0;
        self.add(&all.iter_range, depth, Place::Range)?;
        let inside = [&all.accu_init, &all.loop_cond, &all.loop_step, &all.result];
        inside.into_iter().try_for_each(|part| self.add(part, depth, Place::Loop(all)))
    }

    fn add_joined(&mut self, n: usize, place: Place<'_>) -> Result<(), String> {
        self.joined += n;
        match place {
            Place::Range if n > 0 => {
                return Err(
                    "a loop goes over what is put together; it can go over a part of what there is, such as body.items"
                        .into(),
                );
            }
            Place::Loop(_) => self.joined_in_loop += n,
            Place::Range | Place::Outside => {}
        }
        if self.joined > MOST_JOINED || self.joined_in_loop > MOST_JOINED_IN_LOOP {
            return Err(format!(
                "too many values are put together (`+`, lists, maps): at most {MOST_JOINED}, \
                                and {MOST_JOINED_IN_LOOP} in a loop; compare them one by one"
            ));
        }
        Ok(())
    }
}

/// How many values it puts together. Constants are no longer than the condition.
fn joined(expression: &IdedExpr) -> usize {
    match &expression.expr {
        Expr::Call(call) => usize::from(call.func_name == operators::ADD),
        Expr::List(_) | Expr::Map(_) | Expr::Struct(_) => {
            parts(expression).into_iter().filter(|part| !matches!(part.expr, Expr::Literal(_))).count()
        }
        _ => 0,
    }
}

/// A loop has only its own item, which is one of many: anything else may be as large as all of them.
fn may_name(expression: &IdedExpr, place: Place<'_>) -> Result<(), String> {
    let (Expr::Ident(name), Place::Loop(all)) = (&expression.expr, place) else { return Ok(()) };
    let own = [Some(&all.iter_var), all.iter_var2.as_ref(), Some(&all.accu_var)].contains(&Some(name));
    match own || TYPES.contains(&name.as_str()) {
        true => Ok(()),
        false => Err(format!(
            "a loop looks at {name}, and can look at its own {} alone; say what is about {name} outside of the loop",
            all.iter_var
        )),
    }
}

/// What an expression consists of.
fn parts(expression: &IdedExpr) -> Vec<&IdedExpr> {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(entry_parts).collect(),
        Expr::Struct(all) => all.entries.iter().flat_map(entry_parts).collect(),
        Expr::Comprehension(all) => {
            vec![&all.iter_range, &all.accu_init, &all.loop_cond, &all.loop_step, &all.result]
        }
    }
}

fn entry_parts(entry: &IdedEntryExpr) -> impl Iterator<Item = &IdedExpr> {
    let (key, value) = match &entry.expr {
        EntryExpr::MapEntry(entry) => (Some(&entry.key), &entry.value),
        EntryExpr::StructField(field) => (None, &field.value),
    };
    key.into_iter().chain([value])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

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
            loops(2),
            loops(20),
            "x".repeat(LONGEST + 1),
            // Each doubles what the one before has given.
            format!("['xxxxxxxxxxxxxxxx']{}.size() > 0", ".map(x, x + x)".repeat(40)),
            "result.filter(x, x > 0).all(x, x < 9)".into(),
            "result.map(x, result.map(y, y)).size() > 0".into(),
            "result.all(x, result.all(y, y == 0))".into(),
            // Each looks at the whole for each of its items.
            "result.all(x, x in result)".into(),
            "result.map(x, result).size() > 0".into(),
            // The same several times over.
            "(result + result).all(x, x == 0)".into(),
            "[result, result].all(x, x.size() > 0)".into(),
            format!("result.map(x, x{}).size() > 0", " + x".repeat(20)),
            format!("result.map(x, [x{}]).size() > 0", ", x".repeat(20)),
            format!("result.map(x, {{1: x{}}}).size() > 0", ", 2: x".repeat(20)),
            ["result.all(x, x > 0)"; MOST_LOOPS + 1].join(" && "),
        ];
        for cel in hostile {
            let said = check(&cel).unwrap_err();
            assert!(said.len() < 2 * LONGEST && !holds_for_result(&cel, &json!([1])), "{said}");
        }
        // What is as large as it may be is evaluated on an ordinary stack.
        let deepest = format!("1{} > 0", "+1".repeat(DEEPEST - 2));
        assert!(check(&deepest).is_ok() && holds_for_result(&deepest, &json!(null)));
        assert!(holds_for_result(&repeated("true", " && true", ""), &json!(null)));
        assert!(holds_for_result(&["result.all(x, x > 0)"; MOST_LOOPS].join(" && "), &json!([1, 2])));
    }

    #[test]
    fn loops_ask_of_each_item_what_is_wanted() {
        let result = json!({
            "items": [{"state": "paid", "net": 7, "tax": 1, "all": 8, "tags": ["a"]}, {"state": "sent", "net": 1, "tax": 0, "all": 1}],
            "by_name": {"ada": 1, "bob": 2},
        });
        for cel in [
            "result.items.all(i, i.state in ['paid', 'sent'])",
            "result.items.exists(i, i.state == 'paid' && 'a' in i.tags)",
            "result.items.exists_one(i, i.net + i.tax == 8)",
            "result.items.all(i, i.net + i.tax == i.all && type(i.all) == int)",
            "result.items.filter(i, i.tax == 0).size() == 1",
            "result.items.map(i, i.net + i.tax) == [8, 1]",
            "result.items.map(i, i.tax > 0, i.state + '!') == ['paid!']",
            "result.by_name.all(name, name.size() == 3)",
            "(has(result.none) ? result.none : []).all(i, i.ok)",
            "!has(result.error) && (result.items.size() == 0 || result.items[0].tags.all(t, t == 'a'))",
        ] {
            check(cel).unwrap();
            assert!(holds_for_result(cel, &result), "{cel}");
        }
    }

    #[test]
    fn what_is_refused_says_what_to_write_instead() {
        for (cel, instead) in [
            ("result.filter(x, x > 0).all(x, x < 9)", "list.all(x, !(f) || g)"),
            ("result.all(x, x.all(y, y == 0))", "`in`, `==` and size()"),
            ("result.all(x, x in result)", "outside of the loop"),
            ("(result + result).all(x, x == 0)", "such as body.items"),
        ] {
            let said = check(cel).unwrap_err();
            assert!(said.contains(instead), "{cel}: {said}");
        }
    }

    #[test]
    fn a_loop_over_too_many_items_does_not_hold() {
        let of = |n: usize| json!({ "items": vec![1; n], "few": [1] });
        let judged = |cel: &str, result| evaluate(cel, &[("result", &result)]);
        assert_eq!(judged("result.items.all(x, x == 1)", of(MOST_ITEMS)), Ok(true));
        let said = judged("result.items.all(x, x == 1)", of(MOST_ITEMS + 1)).unwrap_err();
        assert!(said.contains("10001 items") && said.contains("10000"), "{said}");
        let fields: serde_json::Map<_, _> = (0..=MOST_ITEMS).map(|n| (n.to_string(), json!(1))).collect();
        assert!(judged("result.exists(name, name == '1')", fields.into()).is_err());
        let of_others = "result.few.all(x, x == 1) && result.items.size() > 9 && 1 in result.items";
        assert_eq!(judged(of_others, of(MOST_ITEMS + 1)), Ok(true));
        assert!(judged("result.few.all(x, x == 1) && result.none.all(x, x == 1)", of(1)).is_err());
    }

    /// Loops over, in and beside one another, and what they may be made of.
    fn loops() -> impl Strategy<Value = String> {
        let small = prop_oneof![Just("result"), Just("x"), Just("'abc'"), Just("1"), Just("[1]"), Just("result.a")];
        small.prop_map(str::to_owned).prop_recursive(4, 24, 3, |inner| {
            let name = prop_oneof![Just("all"), Just("exists"), Just("map"), Just("filter"), Just("exists_one")];
            prop_oneof![
                (inner.clone(), name, inner.clone())
                    .prop_map(|(range, name, each)| format!("{range}.{name}(x, {each})")),
                (inner.clone(), prop_oneof![Just("+"), Just("=="), Just("in"), Just("&&")], inner.clone())
                    .prop_map(|(a, op, b)| format!("({a} {op} {b})")),
                prop::collection::vec(inner, 1..4).prop_map(|all| format!("[{}]", all.join(", "))),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_is_sent_is_read_or_refused(
            cel in r#"([a-z0-9 .()\[\]{}+*/%<>=!&|?:,"'-]|result|true|1e9|all\(x,|\\u00){0,40}"#
        ) {
            if check(&cel).is_ok() {
                holds_for_result(&cel, &json!({"a": [1, -1, 1.5, "x", null, true]}));
            }
        }

        /// It would not come back if two of them could multiply.
        #[test]
        fn whatever_loops_is_refused_or_comes_to_an_end(cel in loops()) {
            if check(&cel).is_ok() {
                holds_for_result(&cel, &json!(vec!["abc"; 2_000]));
                holds_for_result(&cel, &json!({ "a": vec![1; 2_000] }));
            }
        }
    }
}
