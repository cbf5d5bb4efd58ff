"""An engine over a vLLM server that was started separately.

- The server draws the tokens and streams them with their log-probabilities. One thread reads all streams, and the
  engine's own thread assembles the samples.
- Each load gives the server's weights a label that was never used before, and a different one while it loads. A token
  counts once the server has named the label under which its sample was begun: at the end of a stream, or when asked
  afterwards. Tokens that the server drew with other weights, after a restart or for others, are thus in no sample.
- At a swap all samples are taken out with the tokens that count, and begun again from there: the server computes their
  key-value cache again. Prompt caches are salted with the label.
- The engine waits for a server that is away until the deadline, and gives a restarted one the weights again.
- The tokens drawn depend on a sample's seed and on the index from which it was continued, by the server's own random
  numbers.
"""
