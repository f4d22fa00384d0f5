//! A saga as JSON: the library's [`Definition`], whose steps say in requests what to `do`, and how to `undo` and `confirm` it.
//!
//! All that is wrong with it is said when it is submitted, each by its place in the body: a template that reaches for a step that is not
//! before its own, or for what the input does not have; an address that may not be called; a step that changes something and does not say
//! how to undo that.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use redrive::saga::{Definition, MOST_STEPS, Op, StepDef, UndoKind, With};
use redrive::{Error, Problems, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::template::{Encoding, Reference, Room, Root, Template, Values, fill, templates_in};
use super::{METHOD, part_of_target};
use crate::http::{HttpDelivery, HttpRequest};

/// A step's is its place in its saga.
pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A request with templates in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Asks {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    /// A text is sent as it is, everything else as JSON.
    #[serde(skip_serializing_if = "Value::is_null")]
    body: Value,
}

/// What a step's runner is told of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    run: Option<Asks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<Asks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirm: Option<Asks>,
}

impl Spec {
    pub(super) fn asks(&self, op: Op) -> Option<&Asks> {
        match op {
            Op::Run => self.run.as_ref(),
            Op::Undo => self.undo.as_ref(),
            Op::Confirm => self.confirm.as_ref(),
        }
    }
}

impl Asks {
    /// With values in place of templates, or what is missing, or what is too large with them.
    pub(super) fn request(&self, values: &impl Values) -> Result<HttpRequest, String> {
        let mut room = Room::default();
        let mut text = |text: &str, encoding| Template::parse(text)?.text(values, encoding, &mut room);
        let url = text(&self.url, Encoding::Url)?;
        let mut request = match &self.target {
            Some(target) => HttpRequest::to_target(target, url),
            None => HttpRequest::post(url),
        };
        self.method.iter().for_each(|method| request.method.clone_from(method));
        for (name, value) in &self.headers {
            request.headers.insert(name.clone(), text(value, Encoding::Plain)?);
        }
        match fill(&self.body, values, &mut Room::default())? {
            Value::Null => Ok(request),
            Value::String(body) if self.body.is_string() => Ok(request.with_body(body)),
            body => {
                let is_said = request.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
                if !is_said {
                    request.headers.insert("content-type".into(), "application/json".into());
                }
                Ok(request.with_body(body.to_string()))
            }
        }
    }

    /// Whether its address leads to the same host and port whatever the values are. Asked of the parser that will read it: there are more
    /// ways to write an address than `https://host/`.
    fn has_fixed_host(&self) -> bool {
        let origin = |value| {
            let url = Template::parse(&self.url)?.text(&Sample(value), Encoding::Url, &mut Room::default())?;
            url::Url::parse(&url).map(|url| url.origin()).map_err(|e| e.to_string())
        };
        self.target.is_some()
            || !self.url.contains("{{")
            || matches!((origin("1"), origin("2")), (Ok(a), Ok(b)) if a == b)
    }

    /// Whether it changes nothing there, as HTTP has it.
    fn is_safe(&self) -> bool {
        let method = self.method.as_deref().unwrap_or("POST");
        ["GET", "HEAD", "OPTIONS"].iter().any(|safe| safe.eq_ignore_ascii_case(method))
    }

    fn templates(&self) -> Result<Vec<Template>, String> {
        let mut all = templates_in(&self.body)?;
        for text in self.headers.values().chain([&self.url]) {
            all.push(Template::parse(text)?);
        }
        Ok(all)
    }

    /// Which part of the method it is scheduled with.
    fn part(&self) -> String {
        match &self.target {
            Some(target) => part_of_target(target),
            None => url::Url::parse(&self.url.replace("{{", "").replace("}}", ""))
                .ok()
                .and_then(|url| Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?)))
                .unwrap_or_default(),
        }
    }
}

/// The definition of a saga that was given as JSON, to be started with this input.
pub(crate) fn definition(saga: Value, input: &Value, delivery: &HttpDelivery) -> Result<Definition> {
    let mut problems = Problems::default();
    let Value::Object(mut fields) = saga else {
        return Err(Error::invalid("saga", "must be an object with a name and steps"));
    };
    let steps = match fields.remove("steps") {
        Some(Value::Array(steps)) => steps,
        _ => return Err(Error::invalid("saga.steps", "must be a list of steps")),
    };
    if steps.len() > MOST_STEPS {
        // Not one by one: a saga of a million steps would be answered with a million problems.
        return Err(Error::invalid("saga.steps", format!("must be from 1 to {MOST_STEPS}, are {}", steps.len())));
    }
    let whole = fields.remove("compensate_with").filter(|whole| !whole.is_null());
    let mut definition: Definition = read("saga", fields.into(), &mut problems).unwrap_or_default();
    for (i, step) in steps.into_iter().enumerate() {
        definition.steps.extend(step_of(&format!("saga.steps[{i}]"), step, &mut problems));
    }
    if let Some(asks) = whole.and_then(|whole| read::<Asks>("saga.compensate_with", whole, &mut problems)) {
        let spec = json!(Spec { undo: Some(asks.clone()), ..Spec::default() });
        definition.compensate_with =
            Some(With { method: Some(METHOD.into()), part: Some(asks.part()), spec, ..With::default() });
    }
    problems = problems.into_result().map_or_else(Err, |()| Ok(Problems::default()))?;
    definition.validate().map_err(|e| within("saga", e))?;
    Checks { definition: &definition, input, delivery }.check(&mut problems);
    problems.into_result()?;
    Ok(definition)
}

/// Whether a saga that is under way can be given this input: what its templates reach for must be there, as at its start.
pub(crate) fn check_input(definition: &Definition, input: &Value) -> Result<()> {
    let mut problems = Problems::default();
    let ours = |method: &Option<String>| method.as_deref() == Some(METHOD);
    let steps = definition.steps.iter().filter(|step| ours(&step.method)).map(|step| (step.name.as_str(), &step.spec));
    let whole = definition.compensate_with.iter().filter(|with| ours(&with.method));
    for (at, spec) in steps.chain(whole.map(|with| ("compensate_with", &with.spec))) {
        let spec = serde_json::from_value::<Spec>(spec.clone()).unwrap_or_default();
        let asked = [spec.run, spec.undo, spec.confirm].into_iter().flatten();
        let templates: Vec<Template> = asked.flat_map(|asks| asks.templates().unwrap_or_default()).collect();
        for nothing in templates.iter().flat_map(|template| template.missing_in(input)) {
            problems.add("input", format!("{at} asks for {nothing}, which it does not have"));
        }
    }
    problems.into_result()
}

/// What is wrong with a part of the body is said by its place in the body.
fn within(at: &str, e: Error) -> Error {
    match e {
        Error::Invalid(inner) => {
            let mut problems = Problems::default();
            problems.nest(at, inner);
            Error::Invalid(problems)
        }
        e => e,
    }
}

fn read<T: serde::de::DeserializeOwned>(at: &str, json: Value, problems: &mut Problems) -> Option<T> {
    serde_json::from_value(json).map_err(|e| problems.add(at, e.to_string())).ok()
}

/// What is ours to set.
const OURS: [&str; 5] = ["method", "part", "undo_part", "confirm_part", "spec"];

fn step_of(at: &str, json: Value, problems: &mut Problems) -> Option<StepDef> {
    let Value::Object(mut fields) = json else {
        problems.add(at, "must be an object with a name");
        return None;
    };
    for name in OURS.iter().filter(|name| fields.contains_key(**name)) {
        problems.add(format!("{at}.{name}"), "belongs into `do`, `undo` or `confirm`");
    }
    let mut spec = Spec::default();
    let (run, undo, confirm) = (fields.remove("do"), fields.remove("undo"), fields.remove("confirm"));
    spec.run = run.and_then(|run| read(&format!("{at}.do"), run, problems));
    spec.confirm = confirm.and_then(|confirm| read(&format!("{at}.confirm"), confirm, problems));
    let kind = undo_kind(&format!("{at}.undo"), undo, &mut spec, problems);
    let mut step: StepDef = read(at, fields.into(), problems)?;
    let calls = matches!(step.kind, redrive::saga::StepKind::Call | redrive::saga::StepKind::Reserve { .. });
    problems.require(spec.run.is_some() == calls, &format!("{at}.do"), || {
        if calls { "must say what request is made" } else { "is not for a step that only waits" }.into()
    });
    step.undo = kind.unwrap_or_else(|| match &spec.run {
        // Of which nobody says how to undo it: if it is not known whether it happened, a person must decide.
        Some(run) if !run.is_safe() && step.pivot => UndoKind::Irreversible,
        Some(run) if !run.is_safe() => UndoKind::Compensate,
        _ => UndoKind::Nothing,
    });
    let part = |asks: &Option<Asks>| asks.as_ref().map(Asks::part);
    (step.part, step.undo_part, step.confirm_part) = (part(&spec.run), part(&spec.undo), part(&spec.confirm));
    step.method = calls.then(|| METHOD.into());
    step.spec = if calls { json!(spec) } else { Value::Null };
    Some(step)
}

/// `"none"`, `"irreversible"`, a request; `None` if nothing is said.
fn undo_kind(at: &str, undo: Option<Value>, spec: &mut Spec, problems: &mut Problems) -> Option<UndoKind> {
    match undo? {
        Value::Null => None,
        Value::String(word) if word == "none" => Some(UndoKind::Nothing),
        Value::String(word) if word == "irreversible" => Some(UndoKind::Irreversible),
        request => {
            spec.undo = read(at, request, problems);
            Some(UndoKind::Compensate)
        }
    }
}

/// What follows from how the steps stand to each other, from the input and from the settings.
struct Checks<'a> {
    definition: &'a Definition,
    input: &'a Value,
    delivery: &'a HttpDelivery,
}

impl Checks<'_> {
    fn check(&self, problems: &mut Problems) {
        let pivot = self.definition.steps.iter().find(|step| step.pivot).map(|step| step.name.as_str());
        for (i, step) in self.definition.steps.iter().enumerate() {
            let at = format!("saga.steps[{i}]");
            let Ok(spec) = serde_json::from_value::<Spec>(step.spec.clone()) else { continue };
            let before = ancestors(self.definition, &step.name);
            let past = pivot.is_some_and(|pivot| before.contains(pivot));
            let undone =
                self.definition.compensate_with.is_some() || step.undo != UndoKind::Compensate || spec.undo.is_some();
            problems.require(past || undone, &format!("{at}.undo"), || {
                "a step that changes something must say how that is undone: a request, or \"none\"".into()
            });
            let is_reserve = matches!(step.kind, redrive::saga::StepKind::Reserve { .. });
            problems.require(spec.confirm.is_some() == is_reserve, &format!("{at}.confirm"), || {
                "a step that reserves, and no other, says how that is confirmed".into()
            });
            for (name, asks, own) in
                [("do", &spec.run, false), ("undo", &spec.undo, true), ("confirm", &spec.confirm, true)]
            {
                asks.iter().for_each(|asks| self.check_asks(&format!("{at}.{name}"), asks, &before, own, problems));
            }
        }
        if let Some(with) = &self.definition.compensate_with {
            let all = self.definition.steps.iter().map(|step| step.name.as_str()).collect();
            let spec = serde_json::from_value::<Spec>(with.spec.clone()).unwrap_or_default();
            spec.undo.iter().for_each(|asks| self.check_asks("saga.compensate_with", asks, &all, false, problems));
        }
    }

    fn check_asks(&self, at: &str, asks: &Asks, before: &BTreeSet<&str>, own: bool, problems: &mut Problems) {
        let templates = match asks.templates() {
            Ok(templates) => templates,
            Err(why) => return problems.add(at, why),
        };
        for reference in templates.iter().flat_map(Template::references) {
            match &reference.root {
                Root::Step(name) => problems.require(before.contains(name.as_str()), at, || {
                    format!("steps.{name} is not a step before this one, so it may have no answer yet")
                }),
                Root::Own | Root::RunKey => {
                    problems.require(own, at, || "self and run_key are for undo and confirm alone".into());
                }
                Root::Input | Root::Key | Root::SagaId => {}
            }
        }
        for nothing in templates.iter().flat_map(|template| template.missing_in(self.input)) {
            problems.add(at, format!("there is no {nothing}"));
        }
        for name in asks.headers.keys().filter(|name| name.eq_ignore_ascii_case(IDEMPOTENCY_KEY)) {
            problems
                .add(format!("{at}.headers.{name}"), "is redrive's to set: SAGA/STEP/OP, the same in every attempt");
        }
        problems.require(asks.has_fixed_host(), at, || "no template can be in the host of an address".into());
        if let Some(Err(Error::Invalid(wrong))) =
            asks.request(&Sample("x")).ok().map(|request| self.delivery.check(&request))
        {
            problems.nest(at, wrong);
        }
    }
}

/// To see whether a request could be sent once there are values: each is this one, whatever is below it.
struct Sample(&'static str);

impl Values for Sample {
    fn value(&self, _: &Root) -> Option<Cow<'_, Value>> {
        None
    }

    fn at(&self, _: &Reference) -> Option<Cow<'_, Value>> {
        Some(Cow::Owned(json!(self.0)))
    }
}

/// All steps that are done before this one begins.
fn ancestors<'d>(definition: &'d Definition, name: &str) -> BTreeSet<&'d str> {
    let (mut all, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = open.pop() {
        let step = definition.steps.iter().find(|step| step.name == name);
        for before in step.into_iter().flat_map(|step| &step.after) {
            if all.insert(before.as_str()) {
                open.push(before.clone());
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_same_whatever_the_values_are() {
        let fixed = |url: &str| Asks { url: url.into(), ..Asks::default() }.has_fixed_host();
        for url in [
            "https://h.example.org/{{input.x}}",
            "https://h?q={{input.x}}",
            "http://h:81/a{{key}}/b",
            "not {an} address",
        ] {
            assert!(fixed(url), "{url}");
        }
        for url in [
            "https://{{input.host}}/x",
            "https:{{input.host}}/x",
            "https:/{{input.host}}/x",
            "https:///{{input.host}}/x",
            "https:/{{input.none}}/h.example.org/x",
            "https:\\\\{{input.host}}/x",
            "https://h.example.org{{input.host}}/x",
            "https://h.example.org:{{input.port}}/x",
            "{{input.scheme}}://h.example.org/x",
            "{{input.url}}",
        ] {
            assert!(!fixed(url), "{url}");
        }
    }
}
