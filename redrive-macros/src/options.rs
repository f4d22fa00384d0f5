//! The options of `#[retryable]`.
//!
//! An option that is wrong is passed over, up to the next comma, so that the others are looked at as well.

use std::collections::HashSet;

use proc_macro2::{TokenStream as Tokens, TokenTree};
use quote::quote;
use syn::ext::IdentExt;
use syn::parse::{ParseBuffer, ParseStream, Parser};
use syn::{Expr, Ident, LitStr, Path, Token, parenthesized};

use crate::backoff;
use crate::errors::{self, Errors};
use crate::key;
use crate::problems::Problems;
use crate::value::{self, SuccessIf};

/// What an attribute says.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    /// Fields of `Policy`, each as `name: value`.
    pub(crate) policy: Vec<Tokens>,
    pub(crate) retry_for: Option<Errors>,
    pub(crate) no_retry_for: Option<Errors>,
    pub(crate) success_if: Option<SuccessIf>,
    pub(crate) persist: Option<Tokens>,
    pub(crate) key: Option<Tokens>,
    pub(crate) business: Option<Tokens>,
    pub(crate) priority: Option<Tokens>,
    pub(crate) encrypt: bool,
    pub(crate) on_success: Option<Path>,
    pub(crate) on_final_failure: Option<Path>,
    /// The time limit of a try, which is among the policy's fields, too.
    pub(crate) timeout: Option<Tokens>,
    /// Whether there is a deadline, likewise.
    pub(crate) has_deadline: bool,
    /// Whether its result is kept, which is among the policy's fields, too.
    pub(crate) keep: bool,
}

/// All there are, each as it is written.
const ALL: [(&str, &str); 24] = [
    ("name", "name = \"pay\""),
    ("max_attempts", "max_attempts = 5"),
    ("backoff", "backoff = fixed(\"5s\")"),
    ("jitter", "jitter = \"1s\""),
    ("max_duration", "max_duration = \"1h\""),
    ("deadline", "deadline = order.expires_at"),
    ("timeout", "timeout = \"10s\""),
    ("max_retry_after", "max_retry_after = \"5m\""),
    ("max_postponed", "max_postponed = \"1day\""),
    ("persist", "persist = always"),
    ("retry_for", "retry_for(PayError::Timeout(..), \"http.503\")"),
    ("no_retry_for", "no_retry_for(PayError::Declined { .. }, \"http.404\")"),
    ("success_if", "success_if = |r| r.code == 200"),
    ("key", "key = \"pay-{order.id}\""),
    ("business", "business(\"order\", order.id)"),
    ("priority", "priority = 5"),
    ("notify", "notify(after = 3)"),
    ("on_exhausted", "on_exhausted = escalate"),
    ("on_crash", "on_crash = dead"),
    ("max_crashes", "max_crashes = 3"),
    ("on_success", "on_success = paid"),
    ("on_final_failure", "on_final_failure = not_paid"),
    ("keep", "keep"),
    ("encrypt", "encrypt"),
];

impl Options {
    /// All that is right of them; what is wrong is noted.
    pub(crate) fn read(tokens: Tokens, problems: &mut Problems) -> Self {
        let mut options = Self::default();
        let read = |input: ParseStream| options.read_all(input);
        problems.take(read.parse2(tokens));
        options
    }

    fn read_all(&mut self, input: ParseStream) -> syn::Result<()> {
        let (mut problems, mut seen) = (Problems::default(), HashSet::new());
        while !input.is_empty() {
            let read = self.read_one(input, &mut seen).and_then(|()| at_comma(input));
            problems.take(read);
            skip_past_comma(input);
        }
        problems.into_result()
    }

    fn read_one(&mut self, input: ParseStream, seen: &mut HashSet<String>) -> syn::Result<()> {
        let name = input.call(Ident::parse_any)?;
        let Some((known, usage)) = ALL.iter().find(|(known, _)| name == known) else {
            let all = value::listed(ALL.iter().map(|(name, _)| *name));
            return Err(syn::Error::new(name.span(), format!("no option `{name}`; there are {all}")));
        };
        if !seen.insert(name.to_string()) {
            return Err(syn::Error::new(name.span(), format!("`{name}` is given twice")));
        }
        let entry = Entry { name: &name, usage, input };
        match self.read_policy(known, &entry)? {
            Some(value) => {
                if name == "timeout" {
                    self.timeout = Some(value.clone());
                }
                self.has_deadline |= name == "deadline";
                self.keep |= name == "keep";
                self.policy.push(quote!(#name: #value));
            }
            None => self.read_other(known, &entry)?,
        }
        Ok(())
    }

    /// The value of a field of the policy; `None` if it is not one.
    fn read_policy(&self, name: &str, entry: &Entry<'_>) -> syn::Result<Option<Tokens>> {
        Ok(Some(match name {
            "max_attempts" => value::attempts(entry.assigned()?)?,
            "backoff" => backoff::backoff(entry.assigned()?)?,
            "jitter" => backoff::jitter(entry.assigned()?)?,
            "max_duration" | "timeout" => value::duration(entry.assigned()?)?,
            "max_retry_after" | "max_postponed" => value::span(entry.assigned()?)?,
            "deadline" => {
                let at: Expr = entry.assigned()?.parse()?;
                quote!(::redrive::__private::deadline(#at))
            }
            "notify" => value::notify(&entry.inside()?)?,
            "on_exhausted" => value::word(
                entry.assigned()?,
                "OnExhausted",
                &[("dead", "Dead"), ("escalate", "Escalate"), ("drop", "Drop")],
            )?,
            "on_crash" => value::word(entry.assigned()?, "OnCrash", &[("retry", "Retry"), ("dead", "Dead")])?,
            "max_crashes" => value::crashes(entry.assigned()?)?,
            "keep" => {
                entry.flag()?;
                quote!(true)
            }
            _ => return Ok(None),
        }))
    }

    fn read_other(&mut self, name: &str, entry: &Entry<'_>) -> syn::Result<()> {
        match name {
            "name" => self.name = Some(value::method(entry.assigned()?)?),
            "persist" => self.persist = Some(value::word(entry.assigned()?, "Persist", STRATEGIES)?),
            "retry_for" => self.retry_for = Some(errors::errors(&entry.inside()?, entry.name.span())?),
            "no_retry_for" => self.no_retry_for = Some(errors::errors(&entry.inside()?, entry.name.span())?),
            "success_if" => self.success_if = Some(entry.assigned()?.parse()?),
            "key" => self.key = Some(key::key(entry.assigned()?)?),
            "business" => self.business = Some(value::business(&entry.inside()?, entry.name.span())?),
            "priority" => self.priority = Some(value::priority(entry.assigned()?)?),
            "on_success" => self.on_success = Some(entry.retryable()?),
            "on_final_failure" => self.on_final_failure = Some(entry.retryable()?),
            _ => {
                entry.flag()?;
                self.encrypt = true;
            }
        }
        Ok(())
    }
}

const STRATEGIES: &[(&str, &str)] = &[
    ("retry_only", "RetryOnly"),
    ("on_failure", "OnFailure"),
    ("always", "Always"),
    ("manual", "Manual"),
    ("never", "Never"),
];

/// An option whose name has been read.
struct Entry<'a> {
    name: &'a Ident,
    usage: &'a str,
    input: ParseStream<'a>,
}

impl<'a> Entry<'a> {
    /// After `=`.
    fn assigned(&self) -> syn::Result<ParseStream<'a>> {
        if !self.input.peek(Token![=]) || self.input.peek(Token![==]) {
            return Err(self.misused());
        }
        self.input.parse::<Token![=]>()?;
        if at_comma(self.input).is_ok() {
            return Err(self.misused());
        }
        Ok(self.input)
    }

    /// Within the parentheses.
    fn inside(&self) -> syn::Result<ParseBuffer<'a>> {
        if !self.input.peek(syn::token::Paren) {
            return Err(self.misused());
        }
        let inside;
        parenthesized!(inside in self.input);
        Ok(inside)
    }

    /// The path of another retryable fn, after `=`.
    fn retryable(&self) -> syn::Result<Path> {
        let why = |e: syn::Error| syn::Error::new(e.span(), format!("the path of a retryable fn: `{}`", self.usage));
        self.assigned()?.call(Path::parse_mod_style).map_err(why)
    }

    /// Nothing but its name.
    fn flag(&self) -> syn::Result<()> {
        let why = || syn::Error::new(self.name.span(), format!("`{}` stands alone, without a value", self.name));
        at_comma(self.input).map_err(|_| why())
    }

    fn misused(&self) -> syn::Error {
        syn::Error::new(self.name.span(), format!("`{}` is written `{}`", self.name, self.usage))
    }
}

fn at_comma(input: ParseStream) -> syn::Result<()> {
    if input.is_empty() || input.peek(Token![,]) { Ok(()) } else { Err(input.error("expected `,` and another option")) }
}

/// To the next option.
fn skip_past_comma(input: ParseStream) {
    while let Ok(token) = input.parse::<TokenTree>() {
        if matches!(token, TokenTree::Punct(punct) if punct.as_char() == ',') {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is right of these options, and what is said of the rest.
    fn read(options: &str) -> (Options, Vec<String>) {
        let mut problems = Problems::default();
        let options = Options::read(options.parse().unwrap(), &mut problems);
        let said = problems.into_result().err().into_iter().flatten().map(|e| e.to_string()).collect();
        (options, said)
    }

    /// The policy's fields, without spaces.
    fn policy(options: &str) -> String {
        let (options, said) = read(options);
        assert_eq!(said, Vec::<String>::new());
        options.policy.iter().map(|field| field.to_string().replace(' ', "")).collect()
    }

    /// The one thing that is wrong with these options.
    fn problem(options: &str) -> String {
        let (_, mut said) = read(options);
        assert_eq!(said.len(), 1, "{options}: {said:?}");
        said.remove(0)
    }

    #[test]
    fn values_of_the_policy_become_its_fields() {
        for (option, field) in [
            ("max_attempts = 5", "max_attempts:::core::option::Option::Some(5u32)"),
            ("max_attempts = unlimited", "max_attempts:::core::option::Option::None"),
            (
                "timeout = \"1m 30s\"",
                "timeout:::core::option::Option::Some(::core::time::Duration::from_millis(90000u64))",
            ),
            ("jitter = \"1s\"", "jitter:::redrive::Jitter::Add(::core::time::Duration::from_millis(1000u64))"),
            ("max_postponed = \"2s\"", "max_postponed:::core::time::Duration::from_millis(2000u64)"),
            ("jitter = none", "jitter:::redrive::Jitter::None"),
            ("jitter = proportional(0.2)", "jitter:::redrive::Jitter::Proportional(0.2f64)"),
            ("on_exhausted = drop", "on_exhausted:::redrive::OnExhausted::Drop"),
            ("on_crash = dead", "on_crash:::redrive::OnCrash::Dead"),
            ("notify(after = 3)", "notify:::core::option::Option::Some(::redrive::Notify::Failures(3u32))"),
            ("keep", "keep:true"),
        ] {
            assert_eq!(policy(option), field);
        }
    }

    #[test]
    fn a_growing_backoff_has_the_defaults_of_a_policy_where_nothing_is_said() {
        let exponential = |initial, factor: &str, max| {
            let ms = |ms| format!("::core::time::Duration::from_millis({ms}u64)");
            format!("backoff:::redrive::Backoff::exponential({},{factor},{})", ms(initial), ms(max))
        };
        assert_eq!(policy("backoff = exponential"), exponential(2_000, "2f64", 600_000));
        assert_eq!(policy("backoff = exponential(factor = 1.5)"), exponential(2_000, "1.5f64", 600_000));
        assert_eq!(
            policy("backoff = exponential(initial = \"1s\", max = \"5m\", factor = 3)"),
            exponential(1_000, "3f64", 300_000)
        );
    }

    #[test]
    fn wrong_values_are_refused_with_what_is_right() {
        for (options, part) in [
            ("retries = 5", "no option `retries`; there are name, max_attempts, backoff"),
            ("jitter = none, keep, jitter = full", "`jitter` is given twice"),
            ("max_attempts = 0", "a number from 1 to 1000000, or `unlimited`"),
            ("max_attempts = forever", "or `unlimited`"),
            ("max_attempts = \"5\"", "or `unlimited`"),
            ("max_attempts", "`max_attempts` is written `max_attempts = 5`"),
            ("max_attempts = ", "`max_attempts` is written `max_attempts = 5`"),
            ("max_attempts(5)", "`max_attempts` is written `max_attempts = 5`"),
            ("timeout = \"5 parsecs\"", "\"5 parsecs\" is not a duration such as \"90s\", \"5m\" or \"1h 30m\""),
            ("timeout = 5", "a duration in quotes"),
            ("timeout = \"0s\"", "\"0s\" is not from \"1ms\" to \"3650days\""),
            ("timeout = \"11years\"", "\"11years\" is not from"),
            ("timeout = \"1500us\"", "whole milliseconds"),
            ("backoff = quadratic", "one of exponential("),
            ("backoff = exponential(factor = 0.5)", "a factor is a number from 1 to 1000"),
            ("backoff = exponential(start = \"1s\")", "one of initial, factor, max, each once"),
            ("backoff = exponential(max = \"1m\", max = \"2m\")", "each once"),
            ("backoff = linear(factor = 2)", "one of initial, max, each once"),
            ("backoff = linear(initial = \"1h\")", "`max`, is shorter than the first"),
            ("backoff = fixed", "has one delay"),
            ("backoff = fixed(\"1s\", \"2s\")", "has one delay"),
            ("backoff = list()", "from 1 to 100 delays"),
            (
                "jitter = some",
                "a duration that is added, such as \"1s\", or one of none, full, equal, proportional(0.2)",
            ),
            ("jitter = proportional(1.5)", "from 0 to 1"),
            ("persist = sometimes", "one of retry_only, on_failure, always, manual, never"),
            ("persist = \"always\"", "one of retry_only, on_failure, always, manual, never"),
            ("on_exhausted = explode", "one of dead, escalate, drop"),
            ("on_crash = drop", "one of retry, dead"),
            ("max_crashes = 0", "a number from 1 to 1000"),
            ("retry_for()", "name kinds of errors"),
            ("no_retry_for(\"a b\")", "without spaces"),
            ("retry_for = Timeout", "`retry_for` is written `retry_for(PayError::Timeout(..), \"http.503\")`"),
            ("success_if = 5 + 5", "a closure, such as |r| r.code == 200, or CEL in quotes"),
            ("key = \"pay-{order.id\"", "a `{` is not closed"),
            ("key = \"pay-order.id}\"", "a `}` has no `{` before it"),
            ("key = \"pay-{order.}\"", "`{order.}` is not an expression over the arguments"),
            ("key = \"pay-{}\"", "`{}` is not an expression over the arguments"),
            ("key = \"\"", "or `none`"),
            ("key = order.id", "or `none`"),
            ("business(\"order\")", "business has two parts"),
            ("business(\"order\", order.id, 5)", "business has two parts"),
            ("priority = 40000", "a number from -32768 to 32767"),
            ("notify(3)", "write notify(after = 3)"),
            ("notify(after = 0)", "write notify(after = 3)"),
            ("notify(after = 3, 5)", "unexpected token"),
            ("name = \"\"", "a name in quotes"),
            ("on_success = \"paid\"", "the path of a retryable fn: `on_success = paid`"),
            ("keep = true", "`keep` stands alone"),
            ("encrypt(params)", "`encrypt` stands alone"),
            ("keep encrypt", "`keep` stands alone"),
            ("max_attempts = 5 5", "expected `,` and another option"),
        ] {
            let said = problem(options);
            assert!(said.contains(part), "{options}: {said}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_told_and_what_is_right_is_kept() {
        let (options, said) =
            read("retries = 5, max_attempts = 0, keep, timeout = \"soon\", priority = 5, persist = x");
        assert_eq!(said.len(), 4, "{said:?}");
        assert_eq!(options.policy.len(), 1);
        assert_eq!(options.priority.unwrap().to_string(), "5i16");
    }

    #[test]
    fn a_key_is_a_format_and_its_expressions() {
        let key = |text: &str| read(&format!("key = {text:?}")).0.key.unwrap().to_string().replace(' ', "");
        assert_eq!(key("nightly"), "::redrive::Key::Given(::std::format!(\"nightly\",))");
        assert_eq!(key("{a.b}-{{é}}-{f(c)}"), "::redrive::Key::Given(::std::format!(\"{}-{{é}}-{}\",a.b,f(c)))");
        assert_eq!(
            key("{match a { 0 => b, _ => c }}"),
            "::redrive::Key::Given(::std::format!(\"{}\",matcha{0=>b,_=>c}))"
        );
    }

    #[test]
    fn errors_are_kinds_and_patterns() {
        let (options, said) = read("retry_for(E::A(..) | E::B, \"http.503\", E::C(n) if *n > 5, \"timeout\",)");
        assert_eq!(said, Vec::<String>::new());
        let errors = options.retry_for.unwrap();
        assert_eq!(errors.kinds.iter().map(LitStr::value).collect::<Vec<_>>(), ["http.503", "timeout"]);
        assert_eq!(
            errors.patterns.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["E :: A (..) | E :: B", "E :: C (n) if * n > 5"]
        );
    }
}
