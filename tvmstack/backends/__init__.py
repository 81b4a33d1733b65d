"""Back ends that take regions of a model. Other rooms know the protocol and the registry, never one of them."""
