"""A vLLM server that someone else started, behind the engines' interface.

- The server draws the tokens, and streams them with their log-probabilities; one thread follows each sample, and the
  engine's own thread puts together what has come.
- Each load gives the server's weights a label that was never used before, with another one while it loads. A token
  counts once the server has named the label that its sample was begun under: at the end of a stream, or when asked
  afterwards. So what a server drew with other weights, be it that it was restarted or that others use it, is in no
  sample.
- At a swap all samples are taken out with what they have, and begun again from there: the server reads them anew.
  Caches of prompts are salted with the label.
- A server that is away is waited for, until the deadline; one that was restarted is given the weights again.
- What is drawn depends on a sample's seed and on the place where it was taken up, by numbers of the server's own.
"""
