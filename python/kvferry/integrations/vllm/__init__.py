"""kvferry as the host tier of vLLM.

The only part of kvferry that imports vLLM. `plugin` is what an installed vLLM finds by itself: it
registers the offloading spec `kvferry` and the connector `KvferryConnector`, whose modules are
imported once an engine asks for them. `support` decides which releases that can be; `tier` is the
bookkeeping that all of them share, and each generation of vLLM's interface has a module of its own
on top of it.

Importing this package imports neither vLLM nor torch.
"""
