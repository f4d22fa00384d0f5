//! The fn under `#[retryable]`: what it is called, what it is given, what it returns.
//!
//! Its arguments are stored and come back in another process, so each must own its data or be a plain reference to something
//! that can be owned: `&T` is stored as `T`, `&str` as `String`, `&[T]` as `Vec<T>`, `&Path` as `PathBuf`.

use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    Attribute, FnArg, GenericArgument, Ident, ItemFn, Lifetime, Pat, PatType, PathArguments, ReturnType, Safety,
    Signature, Type, TypeImplTrait, TypeReference, parse_quote,
};

use crate::problems::Problems;

/// A fn that can be a retryable call.
pub(crate) struct Call {
    /// As it was written, but for what is elsewhere in here: it has only those attributes that are about its body.
    pub(crate) function: ItemFn,
    pub(crate) docs: Vec<Attribute>,
    /// For every item that is made of it.
    pub(crate) conditions: Vec<Attribute>,
    /// For whoever uses it.
    pub(crate) notices: Vec<Attribute>,
    /// Whether its first argument is the context.
    pub(crate) takes_context: bool,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) result: Type,
}

/// An argument other than the context.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    /// For its field: `#[serde(…)]`.
    pub(crate) serde: Vec<Attribute>,
    /// What it owns when it is stored.
    pub(crate) stored: Type,
    /// What it refers to, if it is a reference.
    pub(crate) target: Option<Type>,
}

const STORED: &str = "an argument is stored, so it is an owned type or a plain reference: `&T`, `&str`, `&[T]`";
const CONTEXT: &str = "the context comes first: `cx: &Context<'_>`";
const RESULT: &str = "a retryable fn returns a `Result`: an error is what makes it be tried again";

impl Call {
    /// `None` if there are problems.
    pub(crate) fn read(mut function: ItemFn, problems: &mut Problems) -> Option<Self> {
        let mut own = Problems::default();
        check_form(&function.sig, &mut own);
        let takes_context = function.sig.inputs.first().is_some_and(is_context);
        let mut arguments = Vec::new();
        for input in function.sig.inputs.iter_mut().skip(usize::from(takes_context)) {
            arguments.extend(own.take(Argument::read(input)));
        }
        let result = own.take(result(&function.sig));
        problems.take(own.into_result())?;

        let mut with = |names: &[&str]| take_attributes(&mut function.attrs, names);
        let docs = with(&["doc"]);
        let conditions = with(&["cfg"]);
        let notices = with(&["deprecated", "must_use"]);
        Some(Self { function, docs, conditions, notices, takes_context, arguments, result: result? })
    }

    pub(crate) fn name(&self) -> &Ident {
        &self.function.sig.ident
    }

    /// Whether a call borrows what it is given.
    pub(crate) fn borrows(&self) -> bool {
        self.arguments.iter().any(|argument| argument.target.is_some())
    }
}

/// Moves the attributes of these names out.
fn take_attributes(attributes: &mut Vec<Attribute>, names: &[&str]) -> Vec<Attribute> {
    attributes.extract_if(.., |attribute| names.iter().any(|name| attribute.path().is_ident(name))).collect()
}

/// What is wrong with the fn before one looks at its arguments.
fn check_form(signature: &Signature, problems: &mut Problems) {
    let name = &signature.ident;
    let mut refuse = |what: &dyn ToTokens, why: &str| problems.add(syn::Error::new_spanned(what, why));
    if signature.asyncness.is_none() {
        refuse(&signature.fn_token, &format!("a retryable fn is async: write `async fn {name}`"));
    }
    if let Safety::Unsafe(token) = &signature.safety {
        refuse(token, "a retryable fn is not `unsafe`: the engine calls it and promises nothing");
    }
    if let Some(abi) = &signature.abi {
        refuse(abi, "a retryable fn has Rust's own ABI: leave `extern` out");
    }
    if let Some(token) = &signature.constness {
        refuse(token, "a retryable fn is not `const`");
    }
    if !signature.generics.params.is_empty() {
        let why = "a retryable fn has no generics, since what is stored must have one type; \
                   write a fn for each type, and references without lifetimes";
        refuse(&signature.generics.params, why);
    }
    if let Some(conditions) = &signature.generics.where_clause {
        refuse(conditions, "a retryable fn has no generics, so it needs no `where`");
    }
    if let Some(variadic) = &signature.variadic {
        refuse(variadic, "a retryable fn has arguments that can be stored, not `...`");
    }
}

/// Whether this is `…: &Context`.
fn is_context(input: &FnArg) -> bool {
    match input {
        FnArg::Typed(PatType { ty, .. }) => match &**ty {
            Type::Reference(to) => {
                to.mutability.is_none() && last_segment(&to.elem).is_some_and(|s| s.ident == "Context")
            }
            _ => false,
        },
        FnArg::Receiver(_) => false,
    }
}

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

impl Argument {
    fn read(input: &mut FnArg) -> syn::Result<Self> {
        if is_context(input) {
            return Err(syn::Error::new_spanned(input, CONTEXT));
        }
        let FnArg::Typed(input) = input else {
            let why = "a retryable fn has no `self`: it runs again in another process, from its stored arguments; \
                       what cannot be stored is given with `Builder::state` and found by `cx.state()`";
            return Err(syn::Error::new_spanned(input, why));
        };
        let name = match &*input.pat {
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => pat.ident.clone(),
            other => {
                return Err(syn::Error::new_spanned(other, "an argument has a plain name, under which it is stored"));
            }
        };
        let (stored, target) = stored(&input.ty)?;
        Ok(Self { name, serde: take_attributes(&mut input.attrs, &["serde"]), stored, target })
    }
}

/// What an argument of this type owns when it is stored and, if it is a reference, what it refers to.
fn stored(ty: &Type) -> syn::Result<(Type, Option<Type>)> {
    let Type::Reference(reference) = ty else {
        owns(ty, false, STORED)?;
        return Ok((ty.clone(), None));
    };
    if reference.mutability.is_some() || reference.lifetime.is_some() {
        return Err(syn::Error::new_spanned(ty, STORED));
    }
    let target = &*reference.elem;
    owns(target, false, STORED)?;
    let stored = match target {
        Type::Slice(slice) => {
            let item = &slice.elem;
            parse_quote!(::std::vec::Vec<#item>)
        }
        Type::Path(path) if path.path.is_ident("str") => parse_quote!(::std::string::String),
        // A type of the user's own may have the name: what is cloned is owned as itself.
        other if is_unsized(other) => parse_quote!(<#other as ::std::borrow::ToOwned>::Owned),
        Type::TraitObject(_) => return Err(syn::Error::new_spanned(ty, STORED)),
        other => other.clone(),
    };
    Ok((stored, Some(target.clone())))
}

/// Whether this is, by its name, one of the standard library's types that are owned as another: `Path` as `PathBuf`.
fn is_unsized(ty: &Type) -> bool {
    let named = |name: &&str| last_segment(ty).is_some_and(|s| s.ident == name && s.arguments.is_none());
    ["Path", "OsStr", "CStr"].iter().any(named)
}

/// The type that the fn returns, if it is a `Result`.
fn result(signature: &Signature) -> syn::Result<Type> {
    match &signature.output {
        ReturnType::Default => Err(syn::Error::new_spanned(&signature.ident, RESULT)),
        ReturnType::Type(_, ty) if last_segment(ty).is_some_and(|s| s.ident == "Result") => {
            owns(ty, true, "what a retryable fn returns owns its data, since it outlives the arguments")?;
            Ok((**ty).clone())
        }
        ReturnType::Type(_, ty) => Err(syn::Error::new_spanned(ty, RESULT)),
    }
}

/// The two types of `Result<T, E>`, if both are there to be read.
pub(crate) fn both_types(result: &Type) -> Option<(&Type, &Type)> {
    let PathArguments::AngleBracketed(arguments) = &last_segment(result)?.arguments else { return None };
    let mut types = arguments.args.iter().map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    match (types.next()?, types.next()?, types.next()) {
        (Some(ok), Some(error), None) => Some((ok, error)),
        _ => None,
    }
}

/// Refuses, for this reason, a type that borrows or that has no name.
fn owns(ty: &Type, or_is_static: bool, why: &'static str) -> syn::Result<()> {
    let mut search = Search { or_is_static, why, found: Problems::default() };
    search.visit_type(ty);
    search.found.into_result()
}

struct Search {
    or_is_static: bool,
    why: &'static str,
    found: Problems,
}

impl Search {
    fn refuse(&mut self, what: &impl ToTokens) {
        self.found.add(syn::Error::new_spanned(what, self.why));
    }
}

impl<'ast> Visit<'ast> for Search {
    fn visit_type_reference(&mut self, reference: &'ast TypeReference) {
        match &reference.lifetime {
            Some(lifetime) if self.or_is_static && lifetime.ident == "static" => {
                visit::visit_type_reference(self, reference);
            }
            _ => self.refuse(reference),
        }
    }

    fn visit_lifetime(&mut self, lifetime: &'ast Lifetime) {
        if lifetime.ident != "static" {
            self.refuse(lifetime);
        }
    }

    fn visit_type_impl_trait(&mut self, unnamed: &'ast TypeImplTrait) {
        self.refuse(unnamed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(function: &str) -> Result<Call, Vec<String>> {
        let mut problems = Problems::default();
        let call = Call::read(syn::parse_str(function).unwrap(), &mut problems);
        let said = |e: syn::Error| e.into_iter().map(|e| e.to_string()).collect();
        problems.into_result().map(|()| call.unwrap()).map_err(said)
    }

    fn text(tokens: &impl ToTokens) -> String {
        tokens.to_token_stream().to_string().replace(' ', "")
    }

    #[test]
    fn arguments_are_stored_as_what_they_own() {
        let call =
            read("async fn f(mut a: u64, b: &Order, c: &str, d: &[Item], e: Cow<'static, str>) -> Result<(), E> {}");
        let call = call.ok().unwrap();
        let stored: Vec<_> = call.arguments.iter().map(|argument| text(&argument.stored)).collect();
        assert_eq!(stored, ["u64", "Order", "::std::string::String", "::std::vec::Vec<Item>", "Cow<'static,str>"]);
        let targets: Vec<_> = call.arguments.iter().map(|argument| text(&argument.target)).collect();
        assert_eq!(targets, ["", "Order", "str", "[Item]", ""]);
    }

    #[test]
    fn what_has_no_size_is_stored_as_what_owns_it() {
        let call = read("async fn f(a: &std::path::Path, b: &OsStr, c: &Path<u8>, d: Path) -> Result<(), E> {}");
        let stored: Vec<_> = call.ok().unwrap().arguments.iter().map(|argument| text(&argument.stored)).collect();
        let owned = |ty: &str| format!("<{ty}as::std::borrow::ToOwned>::Owned");
        assert_eq!(stored, [&*owned("std::path::Path"), &*owned("OsStr"), "Path<u8>", "Path"]);
    }

    #[test]
    fn the_context_is_first_behind_a_reference_and_not_an_argument() {
        for (context, takes) in
            [("cx: &Context<'_>, ", true), ("cx: &redrive::Context<'_>, ", true), ("cx: Context, ", false)]
        {
            let call = read(&format!("async fn f({context}a: u8) -> Result<(), E> {{}}")).ok().unwrap();
            assert_eq!((call.takes_context, call.arguments.len()), (takes, if takes { 1 } else { 2 }), "{context}");
        }
    }

    #[test]
    fn attributes_go_where_they_belong() {
        let function = "#[cfg(x)] #[allow(y)] #[deprecated] /// Pays.\nasync fn f(#[serde(default)] #[allow(z)] a: u8) -> Result<(), E> {}";
        let call = read(function).ok().unwrap();
        assert_eq!((call.docs.len(), call.conditions.len(), call.notices.len()), (1, 1, 1));
        assert_eq!(call.function.attrs.iter().map(text).collect::<String>(), "#[allow(y)]");
        assert_eq!(call.arguments[0].serde.iter().map(text).collect::<String>(), "#[serde(default)]");
        assert_eq!(text(&call.function.sig.inputs), "#[allow(z)]a:u8");
    }

    #[test]
    fn both_types_of_a_result_are_found_if_they_are_there() {
        let both = |result: &str| {
            let ty: Type = syn::parse_str(result).unwrap();
            both_types(&ty).map(|(ok, error)| (text(ok), text(error)))
        };
        assert_eq!(both("Result<(), E>"), Some(("()".into(), "E".into())));
        assert_eq!(both("anyhow::Result<u8>"), None);
        assert_eq!(both("fmt::Result"), None);
    }

    #[test]
    fn what_cannot_be_stored_or_run_again_is_refused() {
        for (function, part) in [
            ("fn f() -> Result<(), E> {}", "a retryable fn is async: write `async fn f`"),
            ("async unsafe fn f() -> Result<(), E> {}", "not `unsafe`"),
            ("async extern \"C\" fn f() -> Result<(), E> {}", "leave `extern` out"),
            ("async fn f<T>(a: T) -> Result<(), E> {}", "no generics"),
            ("async fn f() -> Result<(), E> where u8: Copy {}", "it needs no `where`"),
            ("async fn f(&self) -> Result<(), E> {}", "no `self`"),
            ("async fn f((a, b): (u8, u8)) -> Result<(), E> {}", "an argument has a plain name"),
            ("async fn f(_: u8) -> Result<(), E> {}", "an argument has a plain name"),
            ("async fn f(a: u8, cx: &Context<'_>) -> Result<(), E> {}", "the context comes first"),
            ("async fn f(a: &mut u8) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: &'static str) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: Option<&str>) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: Option<&'static str>) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: Cow<'_, str>) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: impl Display) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f(a: &dyn Display) -> Result<(), E> {}", "owned type or a plain reference"),
            ("async fn f() {}", "returns a `Result`"),
            ("async fn f() -> Option<u8> {}", "returns a `Result`"),
            ("async fn f(a: &str) -> Result<&str, E> {}", "owns its data"),
            ("async fn f(a: &str) -> Result<impl Display, E> {}", "owns its data"),
        ] {
            let said = read(function).err().unwrap_or_default();
            assert!(said.len() == 1 && said[0].contains(part), "{function}: {said:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_with_a_fn_is_told() {
        assert_eq!(read("fn f<T>(&self, a: &mut T, _: u8) {}").err().unwrap_or_default().len(), 6);
    }
}
