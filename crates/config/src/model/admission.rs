//! Who may use a route, beside networks, passwords and services: the words of `satisfy`.

choice! {
    /// How many of the rules about who may use a route must admit a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub enum Satisfy {
        /// All of them.
        #[default]
        All = "all",
        /// One of them.
        Any = "any",
    }
}
