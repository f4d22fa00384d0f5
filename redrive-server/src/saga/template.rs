//! What earlier answers give to later requests: `{{steps.hotel.body.id}}` in an address, a header or anywhere in a body.
//!
//! Between the braces is a path; or several with `|` between them, of which the first that there is counts:
//! `{{self.body.id | key}}`. A text that is nothing but one template becomes the value itself, so numbers stay numbers; within a
//! text, and in addresses and headers, values are written out. In an address they are encoded, so no value can change where it leads.
//!
//! One value can be asked for many times, and would then be there as often. So what is put in is counted before it is put in, and what has
//! no [`Room`] is refused.

use std::borrow::Cow;

use serde_json::Value;

/// How much a request may be with its values: as much as the longest body.
const MOST_BYTES: usize = 1 << 20;

/// Where a path may begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// The saga's input.
    Input,
    /// What came of an earlier step.
    Step(String),
    /// What came of this step: for its undo and its confirmation.
    Own,
    /// The idempotency key of this call.
    Key,
    /// That of the call that is undone or confirmed.
    RunKey,
    /// The saga's id.
    SagaId,
}

/// A path: where it begins, and the fields below.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) root: Root,
    fields: Vec<String>,
}

/// A text with templates in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// The first that there is.
    Value(Vec<Reference>),
}

/// Where values come from.
pub(super) trait Values {
    fn value(&self, root: &Root) -> Option<Cow<'_, Value>>;

    /// What is at a path; null is nothing.
    fn at(&self, path: &Reference) -> Option<Cow<'_, Value>> {
        let found = match self.value(&path.root)? {
            Cow::Borrowed(root) => path.below(root).map(Cow::Borrowed),
            Cow::Owned(root) => path.below(&root).cloned().map(Cow::Owned),
        };
        found.filter(|value| !value.is_null())
    }
}

/// How much may still be put in.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MOST_BYTES)
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left = self.0.checked_sub(bytes);
        self.0 = left.ok_or_else(|| {
            format!(
                "with its values it would be of more than {MOST_BYTES} bytes; ask for the parts of them that are needed"
            )
        })?;
        Ok(())
    }

    /// A value that is put in.
    fn take_value(&mut self, value: &Value) -> Result<(), String> {
        self.take(length(value))
    }
}

/// About how many bytes it has when it is written out.
fn length(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| length(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + length(value) + 4).sum::<usize>() + 2,
        other => other.to_string().len(),
    }
}

/// How a value is written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Plain,
    /// As a part of an address.
    Url,
}

impl Template {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (inside, after) = after.split_once("}}").ok_or("has {{ without }}")?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.into()));
            }
            pieces.push(Piece::Value(inside.split('|').map(Reference::parse).collect::<Result<_, _>>()?));
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.into()));
        }
        Ok(Self(pieces))
    }

    pub(super) fn references(&self) -> impl Iterator<Item = &Reference> {
        self.0.iter().flat_map(|piece| match piece {
            Piece::Text(_) => [].as_slice(),
            Piece::Value(all) => all.as_slice(),
        })
    }

    /// What it needs of the saga's input, and is not there. Where something else could take its place, nothing is missing.
    pub(super) fn missing_in(&self, input: &Value) -> impl Iterator<Item = String> {
        let input = InputAlone(input);
        let missing = |piece: &Piece| match piece {
            Piece::Value(any) if any.iter().all(|path| path.root == Root::Input) => first(any, &input).is_err(),
            Piece::Value(_) | Piece::Text(_) => false,
        };
        let shown = |piece: &Piece| match piece {
            Piece::Value(any) => nor(any),
            Piece::Text(text) => text.clone(),
        };
        self.0.iter().filter(|piece| missing(piece)).map(shown).collect::<Vec<_>>().into_iter()
    }

    /// Written out, or what is missing, or cannot be in an address.
    pub(super) fn text(&self, values: &impl Values, encoding: Encoding, room: &mut Room) -> Result<String, String> {
        let text = self.written(values, encoding, room)?;
        match encoding == Encoding::Url && self.leads_astray(&text) {
            true => Err("a value in an address must not be empty, nor `.` or `..` as a part of its path".into()),
            false => Ok(text),
        }
    }

    /// Whether a part of this address's path that comes of values is nothing, or leads to where the address is not meant to.
    fn leads_astray(&self, address: &str) -> bool {
        let meant = self.0.iter().map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Value(_) => "{{}}",
        });
        let meant = meant.collect::<String>();
        parts(&meant).zip(parts(address)).any(|(meant, part)| {
            let part = part.to_ascii_lowercase().replace("%2e", ".");
            meant.contains("{{}}") && ["", ".", ".."].contains(&part.as_str())
        })
    }

    fn written(&self, values: &impl Values, encoding: Encoding, room: &mut Room) -> Result<String, String> {
        self.0.iter().try_fold(String::new(), |mut out, piece| {
            match piece {
                Piece::Text(text) => {
                    room.take(text.len())?;
                    out.push_str(text);
                }
                Piece::Value(any) => {
                    let value = first(any, values)?;
                    room.take_value(&value)?;
                    let text = written(&value);
                    match encoding {
                        Encoding::Plain => out.push_str(&text),
                        Encoding::Url => out.extend(url::form_urlencoded::byte_serialize(text.as_bytes()).map(spaced)),
                    }
                }
            }
            Ok(out)
        })
    }

    /// The value itself if there is nothing else, or the text.
    fn value(&self, values: &impl Values, room: &mut Room) -> Result<Value, String> {
        match self.0.as_slice() {
            [Piece::Value(any)] => {
                let value = first(any, values)?;
                room.take_value(&value)?;
                Ok(value.into_owned())
            }
            _ => self.text(values, Encoding::Plain, room).map(Value::String),
        }
    }
}

/// The parts of an address's path, and what is before it.
fn parts(address: &str) -> std::str::Split<'_, char> {
    address.split(['?', '#']).next().unwrap_or_default().split('/')
}

/// A `+` is a space in a form, but not in a path.
fn spaced(part: &str) -> &str {
    if part == "+" { "%20" } else { part }
}

fn first<'v>(any: &[Reference], values: &'v impl Values) -> Result<Cow<'v, Value>, String> {
    any.iter().find_map(|path| values.at(path)).ok_or_else(|| format!("there is no {}", nor(any)))
}

fn nor(any: &[Reference]) -> String {
    any.iter().map(Reference::shown).collect::<Vec<_>>().join(", nor ")
}

/// What is known before anything was done.
struct InputAlone<'a>(&'a Value);

impl Values for InputAlone<'_> {
    fn value(&self, root: &Root) -> Option<Cow<'_, Value>> {
        (*root == Root::Input).then_some(Cow::Borrowed(self.0))
    }
}

/// A text as it is, everything else as JSON.
fn written(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::Borrowed)
}

impl Reference {
    fn parse(path: &str) -> Result<Self, String> {
        let mut names = path.trim().split('.').map(str::to_owned);
        let unknown = || format!("{:?} is none of input, steps.NAME, self, key, run_key and saga.id", path.trim());
        let root = match names.next().as_deref() {
            Some("input") => Root::Input,
            Some("self") => Root::Own,
            Some("key") => Root::Key,
            Some("run_key") => Root::RunKey,
            Some("saga") if names.next().as_deref() == Some("id") => Root::SagaId,
            Some("steps") => Root::Step(names.next().filter(|name| !name.is_empty()).ok_or_else(unknown)?),
            _ => return Err(unknown()),
        };
        let fields: Vec<String> = names.collect();
        if fields.iter().any(String::is_empty) { Err(unknown()) } else { Ok(Self { root, fields }) }
    }

    /// What it leads to.
    fn below<'v>(&self, root: &'v Value) -> Option<&'v Value> {
        self.fields.iter().try_fold(root, |value, field| match value {
            Value::Array(items) => items.get(field.parse::<usize>().ok()?),
            other => other.get(field),
        })
    }

    fn shown(&self) -> String {
        let root = match &self.root {
            Root::Input => "input".to_owned(),
            Root::Step(name) => format!("steps.{name}"),
            Root::Own => "self".into(),
            Root::Key => "key".into(),
            Root::RunKey => "run_key".into(),
            Root::SagaId => "saga.id".into(),
        };
        [root].into_iter().chain(self.fields.iter().cloned()).collect::<Vec<_>>().join(".")
    }
}

/// A JSON value in which every text may have templates.
pub(super) fn fill(json: &Value, values: &impl Values, room: &mut Room) -> Result<Value, String> {
    match json {
        Value::String(text) => Template::parse(text)?.value(values, room),
        Value::Array(items) => items.iter().map(|item| fill(item, values, room)).collect(),
        Value::Object(fields) => {
            let filled = fields.iter().map(|(name, value)| Ok((name.clone(), fill(value, values, room)?)));
            filled.collect::<Result<_, String>>().map(Value::Object)
        }
        other => Ok(other.clone()),
    }
}

/// All templates in a JSON value, or what is wrong with the first that is none.
pub(super) fn templates_in(json: &Value) -> Result<Vec<Template>, String> {
    match json {
        Value::String(text) => Ok(vec![Template::parse(text)?]),
        Value::Array(items) => items.iter().try_fold(Vec::new(), |mut all, item| {
            all.extend(templates_in(item)?);
            Ok(all)
        }),
        Value::Object(fields) => fields.values().try_fold(Vec::new(), |mut all, value| {
            all.extend(templates_in(value)?);
            Ok(all)
        }),
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    struct One(String);

    impl Values for One {
        fn value(&self, _: &Root) -> Option<Cow<'_, Value>> {
            Some(Cow::Owned(self.0.clone().into()))
        }
    }

    struct Some7;

    impl Values for Some7 {
        fn value(&self, root: &Root) -> Option<Cow<'_, Value>> {
            let value = match root {
                Root::Input => json!({ "who": "Ada & co/../x", "n": 7, "list": [{ "id": 1 }], "none": null }),
                Root::Step(name) if name == "hotel" => json!({ "status": 201, "body": { "id": 42 } }),
                Root::Key => json!("trip-7/flight/run"),
                _ => return None,
            };
            Some(Cow::Owned(value))
        }
    }

    fn text(template: &str, encoding: Encoding) -> Result<String, String> {
        Template::parse(template)?.text(&Some7, encoding, &mut Room::default())
    }

    #[test]
    fn values_are_put_in() {
        let asked = json!({ "a": "{{input.n}}", "b": "no. {{ input.n }}", "c": ["{{input.list}}"], "d": 1 });
        let filled = fill(&asked, &Some7, &mut Room::default());
        assert_eq!(filled, Ok(json!({ "a": 7, "b": "no. 7", "c": [[{ "id": 1 }]], "d": 1 })));
        assert_eq!(text("/h/{{steps.hotel.body.id}}/{{input.list.0.id}}", Encoding::Plain).unwrap(), "/h/42/1");
        assert_eq!(text("{{self.body.id | key}}", Encoding::Plain).unwrap(), "trip-7/flight/run");
    }

    #[test]
    fn no_value_changes_where_an_address_leads() {
        assert_eq!(text("/p/{{input.who}}", Encoding::Url).unwrap(), "/p/Ada%20%26%20co%2F..%2Fx");
        let with = |template: &str, value: &str| {
            Template::parse(template).unwrap().text(&One(value.into()), Encoding::Url, &mut Room::default())
        };
        for (template, value) in [
            ("/p/{{input}}", ".."),
            ("/p/{{input}}/cancel", "."),
            ("/p/{{input}}", ""),
            ("/p/{{input}}?a=b", ""),
            ("/p/{{input}}{{input}}", "."),
            ("/p/.{{input}}", "."),
            ("/p/%2E{{input}}", "."),
            ("/p/%2e{{input}}", ""),
        ] {
            assert!(with(template, value).unwrap_err().contains("in an address"), "{template} with {value:?}");
        }
        for (template, value) in
            [("/p?q={{input}}", ""), ("/p/v{{input}}", ""), ("/p/../{{input}}", "7"), ("/p/{{input}}", "...")]
        {
            assert!(with(template, value).is_ok(), "{template} with {value:?}");
        }
    }

    #[test]
    fn what_is_asked_for_again_and_again_has_an_end() {
        let kib = One("x".repeat(1024));
        let times = |n: usize, template: &str| fill(&json!(vec![template; n]), &kib, &mut Room::default());
        assert!(times(1024, "{{input}}").is_ok(), "as much as a body may be");
        // Refused when it is too much, not when all of it is there: that would be 80 GiB.
        let most = One("x".repeat(MOST_BYTES));
        let said = fill(&json!(vec!["{{input}}"; 80_000]), &most, &mut Room::default()).unwrap_err();
        assert!(said.contains("more than 1048576 bytes"), "{said}");
        for template in ["{{input}}", "a {{input}}", "{{input}}{{input}}"] {
            assert!(times(1025, template).is_err(), "{template}");
        }
        let long = "{{input}}".repeat(1025);
        assert!(Template::parse(&long).unwrap().text(&kib, Encoding::Url, &mut Room::default()).is_err());
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        assert_eq!(
            text("{{self.body.id | steps.car.body}}", Encoding::Plain).unwrap_err(),
            "there is no self.body.id, nor steps.car.body"
        );
        assert!(text("{{input.none}}", Encoding::Plain).is_err(), "null is nothing to put in");
        for wrong in [
            "{{",
            "{{input",
            "{{}}",
            "{{other.x}}",
            "{{steps}}",
            "{{steps.}}",
            "{{input..x}}",
            "{{saga.name}}",
            "{{input.x |}}",
        ] {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Template::parse("no } templates { here }}").is_ok());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(template in "\\PC{0,40}") {
            _ = text(&template, Encoding::Url);
        }

        /// However values and templates are, no more is put in than there is room for.
        #[test]
        fn what_is_put_in_has_room(n in 1usize..3_000, length in 0usize..3_000, within in any::<bool>()) {
            let template = if within { "a {{input}}" } else { "{{input}}" };
            let filled = fill(&json!(vec![template; n]), &One("x".repeat(length)), &mut Room::default());
            let whole = n * (length + if within { 2 } else { 0 });
            prop_assert_eq!(filled.is_ok(), whole <= MOST_BYTES, "{} bytes", whole);
        }

        /// What goes into an address is one part of it.
        #[test]
        fn values_in_addresses_are_one_part(value in prop_oneof![any::<String>(), "[.%2eE/]{0,3}"]) {
            let template = Template::parse("/a/{{input}}/b").unwrap();
            let Ok(path) = template.text(&One(value), Encoding::Url, &mut Room::default()) else { return Ok(()) };
            prop_assert_eq!(path.matches('/').count(), 3);
            prop_assert!(!path.contains(['?', '#', '\\', ' ']));
            let url = url::Url::parse("https://h").unwrap().join(&path).unwrap();
            prop_assert_eq!(url.path_segments().unwrap().count(), 3, "{}", url);
            prop_assert!(!url.path().contains("//"));
        }
    }
}
